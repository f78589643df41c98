"""An engine's iterations: rank, admit, evict, pack, compute, end. Change these rules with the reference simulator."""

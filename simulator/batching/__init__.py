"""An engine's iterations: rank, admit, evict, pack, compute, end. Change a rule in the reference simulator too."""

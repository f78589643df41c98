"""How much a better policy could gain: a search that knows the future (docs/headroom.md)."""

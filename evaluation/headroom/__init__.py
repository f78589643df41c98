"""How much better than existing policies one could do: a search that knows the future (docs/headroom.md)."""

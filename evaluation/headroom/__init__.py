"""How much better than the policies there are one could do: a search that knows the future (docs/headroom.md)."""

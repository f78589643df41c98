"""Runs of vLLM on a GPU that is lent for a quarter of an hour: packed, measured and compared (docs/results/gpu.md)."""

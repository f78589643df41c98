"""Measuring what batches take on a live engine, or as operators of a model shape."""

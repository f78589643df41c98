"""Measures the time of batches on a live engine, or as operators of a model shape."""

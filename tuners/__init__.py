"""Trains policies, and searches their parameters."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.tuners: import it under that name")

"""Policies outside the simulator: in vLLM, Ray Serve, xLLM and before live servers; and what is measured there."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.adapters: import it under that name")

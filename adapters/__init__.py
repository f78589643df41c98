"""Policies outside the simulator: in vLLM, SGLang, xLLM, Ray Serve and proxies; and measurements of live engines."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.adapters: import it under that name")

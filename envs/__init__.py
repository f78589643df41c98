"""Gymnasium environments of LLM serving."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.envs: import it under that name")

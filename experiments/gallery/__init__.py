"""The gallery: a page for each environment, with an animation of two players on the same overloaded episode."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.experiments.gallery: import it under that name")

"""What users run on simulations: comparisons, panels, goodput, bounds, statistics and reports."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.evaluation: import it under that name")

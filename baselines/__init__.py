if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.baselines: import it under that name")

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.experiments: import it under that name")

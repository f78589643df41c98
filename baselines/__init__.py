"""Policies by folder: schedulers, routers, scalers. Each module registers its policies when it is imported."""

import functools
import importlib
import pkgutil

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.baselines: import it under that name")


@functools.cache
def load() -> None:
    """Import all modules of the policy folders, which registers their policies."""
    for folder in ("schedulers", "routers", "scalers"):
        package = importlib.import_module(f"{__name__}.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

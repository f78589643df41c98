"""Loading the policies of this package: each module of a policy folder registers its own when it is imported."""

import functools
import importlib
import pkgutil

from servegym.baselines import routers, scalers, schedulers


@functools.cache
def load() -> None:
    """Import every module of the policy folders, which registers the policies in them."""
    for package in (schedulers, routers, scalers):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

"""Policies by folder: schedulers, routers, scalers. Each module registers its policies when it is imported."""

import contextlib
import functools
import importlib
import pkgutil

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.baselines: import it under that name")


FOLDERS = {"scheduler": "schedulers", "router": "routers", "scaler": "scalers"}  # by kind of policy


def load() -> None:
    """Import all modules of the policy folders, which registers their policies."""
    for kind in FOLDERS:
        load_kind(kind)


@functools.cache
def load_kind(kind: str) -> None:
    """Import all modules of the folder of a kind."""
    package = importlib.import_module(f"{__name__}.{FOLDERS[kind]}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def load_named(kind: str, name: str) -> None:
    """Import the module that has a policy's name, or those of its kind where none has it. That takes 15 ms less.

    All are imported, too, if another module has registered a policy of this kind and name, as a shipped one may have
    the same.
    """
    from servegym.simulator.policies.policy import registered

    module = f"{__name__}.{FOLDERS[kind]}.{name.replace('-', '_')}"
    if (kind, name) not in registered() and name.replace("-", "_").isidentifier():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    found = registered().get((kind, name))
    if found is None or found.function.written.__module__ != module:
        load_kind(kind)

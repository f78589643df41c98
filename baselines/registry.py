"""Finding every policy of this package: each module of a policy folder registers its own."""

import functools
import importlib
import pkgutil

from servegym.baselines import routers, scalers, schedulers
from servegym.simulator import policies
from servegym.simulator.policies import Policy


@functools.cache
def load() -> None:
    """Import every module of the policy folders, which registers the policies in them."""
    for package in (schedulers, routers, scalers):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def scheduler(text: str) -> Policy:
    """The scheduler "name" or "name:key=value,...". Raises PolicyError for an unknown name or parameter."""
    load()
    return policies.get_policy("scheduler", text)


def scheduler_names() -> list[str]:
    """Names of the registered schedulers, sorted."""
    load()
    return policies.policy_names("scheduler")


def router(text: str) -> Policy:
    """The router "name" or "name:key=value,...". Raises PolicyError for an unknown name or parameter."""
    load()
    return policies.get_policy("router", text)


def router_names() -> list[str]:
    """Names of the registered routers, sorted."""
    load()
    return policies.policy_names("router")


def scaler(text: str) -> Policy:
    """The scaler "name" or "name:key=value,...". Raises PolicyError for an unknown name or parameter."""
    load()
    return policies.get_policy("scaler", text)


def scaler_names() -> list[str]:
    """Names of the registered scalers, sorted."""
    load()
    return policies.policy_names("scaler")

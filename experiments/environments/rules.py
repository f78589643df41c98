"""The rules that ship: every policy of a role with its defaults, learned ones among them."""

import importlib.resources
from pathlib import PurePath

from servegym.baselines import registry
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Policy

NAMES = {"scheduler": registry.scheduler_names, "router": registry.router_names, "scaler": registry.scaler_names}
FIND = {"scheduler": registry.scheduler, "router": registry.router, "scaler": registry.scaler}


def rules_of(role: str) -> dict[str, Policy]:
    """By name. role: scheduler, router or scaler."""
    found = {name: FIND[role](name) for name in NAMES[role]()}
    for file in sorted(str(one) for one in importlib.resources.files(registry.SHIPPED).iterdir()):
        if file.endswith(".json"):
            name = f"{registry.LEARNED}{PurePath(file).stem}"
            try:
                found[name] = FIND[role](name)
            except PolicyError:  # it is of another role
                continue
    return found

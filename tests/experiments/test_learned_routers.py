"""The table of a learned router beside the rules that ship."""

import numpy as np
import pytest

from experiments.environments.rules import rules_of
from experiments.learned_routers import row
from servegym.baselines import registry


@pytest.mark.parametrize("role", ["scheduler", "router", "scaler"])
def test_every_policy_that_ships_is_a_rule(role: str) -> None:
    names = {"scheduler": registry.scheduler_names, "router": registry.router_names, "scaler": registry.scaler_names}
    rules = rules_of(role)
    assert set(names[role]()) <= set(rules) and all(policy.kind == role for policy in rules.values())
    assert ("learned:cma-cluster-routing" in rules) == (role == "router")


def test_differences_are_between_the_same_scenarios() -> None:
    base = np.array([[0.5, 0.7], [0.4, 0.6], [3.0, 5.0], [4.0, 4.0]])
    assert row("least", base, base) == ("`least`", "0.600", "", "0.500", "4.0")
    better = base + np.array([[0.1], [0.2], [-1.0], [0.0]])
    assert row("mine", better, base) == ("`mine`", "0.700", "+0.100", "0.700", "3.0")

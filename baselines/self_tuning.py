"""Self-tuning schedulers: the settings that each chooses among while it serves (docs/self_tuning.md)."""

from __future__ import annotations

import dataclasses
import itertools

from servegym.errors import PolicyError
from servegym.policy import Fact, Policy
from servegym.simulator.policies.self_tuning import SelfTuning, Setting

# eta in smallest TPOT SLOs. Not `hopeless`: what a late answer is worth has to be given.
EXPECTED_GAIN: tuple[Setting, ...] = tuple(
    {"eta": Fact("min_tpot_slo_s", eta), "most_late": most_late}
    for eta, most_late in itertools.product((0.8, 0.85, 0.9, 0.95), (0.5, 0.75))
)
SETTINGS = {"expected-gain": EXPECTED_GAIN}


def self_tuned(policy: Policy) -> Policy:
    """The scheduler, tuning itself. Raises PolicyError for a scheduler without settings to choose among."""
    if policy.name not in SETTINGS:
        raise PolicyError(
            f"{policy.label} cannot tune itself; there are settings to choose among for {', '.join(SETTINGS)}"
        )
    return dataclasses.replace(policy, self_tuning=SelfTuning(SETTINGS[policy.name]))

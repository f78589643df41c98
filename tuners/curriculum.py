"""Where to train: scenarios are drawn more often the more heuristics show that there is to gain in them.

In many scenarios no decision changes the gain, and a learner sees only noise there. A pool of scenarios is served by
the base policy and a few others; a scenario's known headroom is the best one's gain less the base's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from servegym.baselines.registry import router, scaler, scheduler
from servegym.evaluation.running import Runner, ThreadRunner, results_of
from servegym.scenarios.sampling import SPLITS
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.tuners.config import CurriculumConfig
from servegym.tuners.decision_head import DecisionHead
from servegym.tuners.validation import outcome_of

FIND: dict[str, Callable[[str], Policy]] = {"scheduler": scheduler, "router": router, "scaler": scaler}


class Curriculum:
    """A source of scenarios: those of a pool, by their headroom. `headroom`: float64[pool], TDG ratio."""

    def __init__(
        self, source: Callable[[np.random.Generator], Scenario], headroom: np.ndarray, seeds: range, even: float
    ):
        self.source, self.headroom, self.seeds = source, headroom, seeds
        known = np.maximum(headroom, 0.0)
        equal = np.full(len(known), 1.0 / len(known))
        self.shares = even * equal + (1.0 - even) * (known / known.sum() if known.any() else equal)

    def __call__(self, rng: np.random.Generator) -> Scenario:
        chosen = int(rng.choice(len(self.shares), p=self.shares))
        return self.source(np.random.default_rng(self.seeds[chosen]))


def curriculum_of(
    source: Callable[[np.random.Generator], Scenario],
    head: DecisionHead,
    config: CurriculumConfig,
    seed: int,
    runner: Runner | None = None,
) -> Curriculum:
    """Measure a pool of scenarios of seeds from `seed` on, of the training's.

    Raises PolicyError for unknown references.
    """
    first = seed % (len(SPLITS["train"]) - config.pool)
    seeds = range(first, first + config.pool)
    scenarios = [source(np.random.default_rng(one)) for one in seeds]
    policies = [head.base, *(FIND[head.part](text) for text in config.references)]
    runs = [head.with_policy(scenario, policy) for policy in policies for scenario in scenarios]
    found = np.array(results_of(runner or ThreadRunner(), partial(outcome_of, runs), range(len(runs))))
    ratios = found[:, 0].reshape(len(policies), len(scenarios))
    return Curriculum(source, ratios[1:].max(axis=0) - ratios[0], seeds, config.even)

"""Judging a policy on the scenarios of some seeds, beside the base policy on the same ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from servegym.evaluation.identity import deployment_digest
from servegym.evaluation.intervals import Interval
from servegym.evaluation.running import Runner, ThreadRunner, results_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.tuners.config import ValidationConfig
from servegym.tuners.decision_head import DecisionHead
from servegym.tuners.objective import GAIN_ALONE, Objective
from servegym.tuners.serving import Outcome, outcome_of

WITHIN_95 = 1.96  # standard errors


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Mean TDG ratios. difference: policy less base, over the same scenarios; half_width: of its 95 % interval, 0 where
    one scenario is all there is.

    attainment, attainment_difference, attainment_half_width: SLO attainment of the policy, that less the base's, and
    half its interval. wait_s, wait_difference_s: the p99 of the time to a first token, and that less the base's, s.
    score: the policy's, by the objective.
    """

    policy: float
    base: float
    difference: float
    half_width: float
    attainment: float
    attainment_difference: float
    attainment_half_width: float
    wait_s: float
    wait_difference_s: float
    score: float


class Judge:
    """Runs policies on the same scenarios, compiled and to the end. runner: where; None: in threads, one a core.
    objective: by which policies are scored.

    Scenarios that are equal for every seed (a file served whole at one load) are run and counted once.
    """

    def __init__(
        self,
        head: DecisionHead,
        source: Callable[[np.random.Generator], Scenario],
        config: ValidationConfig,
        runner: Runner | None = None,
        objective: Objective = GAIN_ALONE,
    ):
        self.head, self.objective = head, objective
        seeds = range(config.first_seed, config.first_seed + config.scenarios)
        self.scenarios = distinct(source(np.random.default_rng(seed)) for seed in seeds)
        self._runner = runner or ThreadRunner()
        self._base: np.ndarray | None = None

    def outcomes(self, policy: Policy | None = None) -> np.ndarray:
        """float64[4, scenarios]: an `Outcome` a scenario, of the policy; None: of the base."""
        runs = [self.head.with_policy(scenario, policy) for scenario in self.scenarios]
        return np.array(results_of(self._runner, partial(outcome_of, runs), range(len(runs)))).T

    @property
    def base(self) -> np.ndarray:
        """float64[4, scenarios]: outcomes of the base policy."""
        if self._base is None:
            self._base = self.outcomes()
        return self._base

    def judge(self, policy: Policy) -> Verdict:
        """Compare the policy with the base."""
        found = self.outcomes(policy)
        (ratio, attainment, wait_s, _), (base, *_) = found.mean(axis=1), self.base.mean(axis=1)
        differences, attained, waited_s, _ = found - self.base
        seen = (Outcome(*one)._asdict() for one in found.T)
        score = ratio + np.mean([self.objective.beside_gain(outcome) for outcome in seen])
        return Verdict(
            float(ratio), float(base), float(differences.mean()), half_width(differences),
            float(attainment), float(attained.mean()), half_width(attained),
            float(wait_s), float(waited_s.mean()), float(score),
        )  # fmt: skip


def half_width(differences: np.ndarray) -> float:
    """Return half the 95 % interval of a mean; 0 for one value."""
    n = len(differences)
    return float(WITHIN_95 * differences.std(ddof=1) / math.sqrt(n)) if n > 1 else 0.0


def progress_text(row: Mapping[str, Any]) -> str:
    """Return what a row of the curve, with the fields of a verdict, says about the base, for a line of progress."""
    tdg = Interval.about(100 * row["difference"], 100 * row["half_width"]).text("+.2f")
    attained = Interval.about(100 * row["attainment_difference"], 100 * row["attainment_half_width"]).text("+.2f")
    return f", {tdg} points of TDG ratio to the base, {attained} of SLO attainment"


def distinct(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Each scenario once, in order: equal workload, engines and settings are the same run."""
    found: dict[tuple[Any, ...], Scenario] = {}
    for scenario in scenarios:
        others = {name: value for name, value in vars(scenario).items() if name not in ("workload", "deployment")}
        found.setdefault((scenario.workload.digest, deployment_digest(scenario.deployment), repr(others)), scenario)
    return list(found.values())

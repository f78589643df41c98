"""Choosing a scheduler's parameters while it serves (self_tuning.py).

The requests that came last are served again in simulations, once with each setting; the one that does best is used from
then on. Nothing of the future is known, nor of an answer that is under way more than that it is longer than what is out
of it; nor what a batch takes, but what the scheduler believes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from servegym.errors import PolicyError
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.features.disturbances import Disturbance
from servegym.simulator.features.speculating import speculating
from servegym.simulator.inputs.cluster import Cluster, cluster_of
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import numbers_by_engine
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.self_tuning import SelfTuning, with_setting
from servegym.simulator.records.state import SimulationState
from servegym.simulator.records.statistics import UNKNOWN_TOKENS
from servegym.simulator.runs.results import Result

Serve = Callable[[Scenario, np.ndarray], Result]  # (what is served, float64[engines, ...]: numbers of schedulers)


class Tuner:
    """Of a run: when its scheduler chooses next, and what it has chosen.

    chosen: (s, index of the setting; 0: its own) of each choice, `choices` in words. next_s: when it chooses again;
    inf: never.
    """

    def __init__(self, scenario: Scenario, tuning: SelfTuning, serve: Serve):
        self.scenario, self.tuning, self.serve = scenario, tuning, serve
        pools = speculating(cluster_of(scenario.deployment)).pools
        self.numbers = [
            numbers_by_engine(dataclasses.replace(scenario, scheduler=policy), pools)
            for policy in tuning.policies(scenario.scheduler)
        ]
        self.present, self.count = 0, tuning.first
        self.chosen = [(0.0, 0)]

    @property
    def choices(self) -> list[dict[str, Any]]:
        """As JSON: when each setting came into use, and what it is beside the policy's own ({}: nothing)."""
        settings = ({}, *self.tuning.to_json()["settings"])
        changed: list[dict[str, Any]] = []
        for at_s, index in self.chosen:
            if not changed or changed[-1]["setting"] != settings[index]:
                changed.append({"at_s": at_s, "setting": settings[index]})
        return changed

    @property
    def next_s(self) -> float:
        arrival_s = self.scenario.workload.table["arrival_s"]
        return float(arrival_s[self.count]) if self.count < len(arrival_s) else np.inf

    def choose(self, run: SimulationState) -> np.ndarray:
        """float64[engines, ...]: the numbers of schedulers from now on."""
        seen = served_so_far(self.scenario, run, self.tuning.window)
        self.present = best_setting(seen, self.tuning, self.numbers, self.present, self.serve)
        self.chosen = [*self.chosen, (self.next_s, self.present)]
        self.count = self.tuning.after(self.count)
        return self.numbers[self.present]


def best_setting(seen: Scenario, tuning: SelfTuning, numbers: Sequence[np.ndarray], present: int, serve: Serve) -> int:
    """Which of these numbers serve a scenario best; those of now, where none does so by more than the margin."""
    results = [serve(seen, one) for one in numbers]
    worth = [one.figure("tdg_ratio") + tuning.attainment * one.figure("slo_attainment") for one in results]
    best = int(np.argmax(worth))
    return best if worth[best] > worth[present] + tuning.margin else present


def tuner_of(scenario: Scenario, serve: Serve) -> Tuner | None:
    """None where nothing tunes itself. Raises PolicyError where something does that cannot."""
    for pool in scenario.deployment.pools:
        if pool.scheduler is not None and pool.scheduler.self_tuning is not None:
            raise PolicyError(f"{pool.name}: {pool.scheduler.label} is of one pool; a scheduler tunes itself for all")
    policy = scenario.scheduler
    if policy.self_tuning is None:
        return None
    if scenario.arrivals_depend:
        raise PolicyError(
            f"{policy.label} tunes itself where arrivals are known beforehand; those of sessions, clients and "
            "max_concurrency are not: leave out self-tuned:"
        )
    return Tuner(scenario, policy.self_tuning, serve)


@dataclasses.dataclass(frozen=True)
class Believed:
    """What a scheduler believes that batches take, as if they did."""

    batch_s: Compiled
    coefficients: np.ndarray


def served_so_far(scenario: Scenario, run: SimulationState, window: int) -> Scenario:
    """The requests that came last, as far as they are known, on engines as the scheduler believes them to be."""
    until = int(run.status[0].next_arrival)
    last = slice(max(until - window, 0), until)
    table, prefixes = scenario.workload.table[last].copy(), scenario.workload.prefixes
    finished, emitted = np.isfinite(run.outcomes["finish_s"][last]), run.requests["num_output_tokens"][last]
    memory = min(pool.total_blocks * pool.block_tokens for pool in scenario.deployment.pools)
    lengths = likely_lengths(table["output_tokens"], emitted, finished)
    longest = memory + 1 - table["prompt_tokens"]  # the last token needs no memory
    table["output_tokens"] = np.where(finished, lengths, np.minimum(lengths, longest))
    if prefixes is not None:  # without those of answers, which say how long they are
        offsets, chunks = prefixes.of_prompts(scenario.workload.table["prompt_tokens"])
        prefixes = dataclasses.replace(prefixes, offsets=offsets, chunks=chunks).take(np.arange(last.start, last.stop))
    weight = float(run.requests["first_token_gain"][last.start] / table["weight"][0])
    return dataclasses.replace(
        scenario,
        workload=Workload(table, scenario.workload.name, prefixes=prefixes),
        deployment=believed(scenario, run),
        scheduler=with_setting(scenario.scheduler, {}),
        gain=dataclasses.replace(scenario.gain, first_weight=weight),
        until_s=np.inf,
        disturbance=Disturbance(),
        correction=None,
        incidents=(),
    )


def likely_lengths(output_tokens: np.ndarray, emitted: np.ndarray, finished: np.ndarray) -> np.ndarray:
    """int64[n]: tokens of answers; of one that has not finished drawn among the longer ones, as likely as they are.

    How likely lengths are is Kaplan and Meier's estimate, since long answers are those that have not finished: of
    lengths x that answers have had, in turn, S(x) = S(x before) (1 - those of x / those of x or longer, or not at their
    end there). An answer that is longer than all of them has as many tokens left as answers have in the mean.
    """
    draw, lengths = np.random.default_rng(len(finished)), output_tokens.astype("i8")
    known, times = np.unique(output_tokens[finished], return_counts=True)
    at_least = np.searchsorted(np.sort(np.where(finished, output_tokens, emitted)), known)
    survival = np.concatenate([[1.0], np.cumprod(1.0 - times / (len(finished) - at_least))])  # S before each of known
    mean = max(1, round(output_tokens[finished].mean())) if len(known) else int(UNKNOWN_TOKENS)
    for i in np.flatnonzero(~finished):
        left = survival[np.searchsorted(known, emitted[i], side="right")]
        k = int(np.searchsorted(-survival[1:], -left * draw.random(), side="right"))
        lengths[i] = known[k] if k < len(known) else max(emitted[i], known.max(initial=0)) + mean
    return lengths


def believed(scenario: Scenario, run: SimulationState) -> Deployment | Cluster:
    """The engines, with batches that take what the estimator says, as it is corrected now."""
    pools, first = [], 0
    for pool in scenario.deployment.pools:
        numbers = pool.estimator.coefficients
        if scenario.correction is not None and pool.speculation is None:
            numbers = run.estimate[first][: len(numbers)].copy()
        pools.append(dataclasses.replace(pool, device=Believed(pool.estimator.batch_s, numbers)))
        first += pool.engines
    if isinstance(scenario.deployment, Cluster):
        return dataclasses.replace(scenario.deployment, pools=tuple(pools))
    return pools[0]

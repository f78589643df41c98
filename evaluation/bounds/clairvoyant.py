"""An upper bound on TDG that no scheduler, router or knowledge of the future exceeds (docs/results/bounds.md)."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.bounds.formulation import Group, formulate
from servegym.evaluation.bounds.least_work import LeastWork, least_work
from servegym.evaluation.bounds.periods import Bins
from servegym.evaluation.bounds.tokens import WorthyTokens
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario

MOST_BINS = 4096
FINENESS = 1
TIME_LIMIT_S = 120.0
ATTEMPTS = 3  # with bins twice as wide each time


@dataclasses.dataclass(frozen=True)
class Bound:
    """No run of the scenario gains more than `gain`; `ideal_gain` is the gain if every token is in time.

    bin_s, fineness: the grid of the relaxation. variables, rows: of the linear program. solve_s: time it took.
    """

    gain: float
    ideal_gain: float
    bin_s: float
    fineness: int
    variables: int
    rows: int
    solve_s: float

    @property
    def ratio(self) -> float:
        """The largest possible TDG ratio."""
        return self.gain / self.ideal_gain if self.ideal_gain else math.nan

    def share(self, gain: float) -> float:
        """A run's gain over the bound; NaN if nothing can be gained."""
        return gain / self.gain if self.gain else math.nan


def tdg_upper_bound(
    scenario: Scenario, bin_s: float | None = None, fineness: int = FINENESS, time_limit_s: float = TIME_LIMIT_S
) -> Bound:
    """Solve the linear relaxation of a scenario; its scheduler and router do not matter.

    bin_s: width of a bin; None: the shortest TTFT (or TTLT) SLO, or wider if that makes more than 4096 bins; doubled,
    at most twice, if HiGHS does not solve it in time_limit_s.
    fineness: the larger, the closer the periods of a request follow its deadlines.

    Raises ExperimentError for what it does not hold for (see `check_scenario`), and a device form without a known least
    time (see `least_work`); and where HiGHS has not solved it in time_limit_s.
    """
    check_scenario(scenario)
    if bin_s is not None and not 0 < bin_s < math.inf:
        raise ExperimentError(f"bin_s is {bin_s}; it should be a time above 0")
    if fineness < 1:
        raise ExperimentError(f"fineness is {fineness}; it should be 1 or more")
    table = scenario.workload.table
    groups = groups_of(scenario)
    first_gain, later_gain = scenario.gain.token_gains(table)
    tokens = WorthyTokens(table, first_gain, later_gain, groups[0].work, groups[-1].work, scenario.until_s)
    ideal = float(scenario.gain.ideal(scenario.workload).sum())
    if not tokens.any:
        return Bound(0.0, ideal, 0.0, fineness, 0, 0, 0.0)
    start_s, end_s = float(table["arrival_s"][0]), tokens.end_s
    attempts = 1 if bin_s is not None else ATTEMPTS
    if bin_s is None:
        shortest_s = float(np.minimum(table["ttft_slo_s"], table["ttlt_slo_s"]).min())
        bin_s = max(shortest_s, (end_s - start_s) / MOST_BINS)
    begin = time.perf_counter()
    for attempt in range(attempts):
        width_s = bin_s * 2**attempt
        program = formulate(tokens, groups, Bins.over(start_s, end_s, width_s), fineness)
        solved = program.solve(time_limit_s)
        if solved.status == 0:
            break
    else:
        raise ExperimentError(f"no bound: HiGHS reports {solved.message!r}; try wider bins than {width_s:g} s")
    variables, rows, _ = program.size
    # Sums of floats in the simulator and here differ in their last digits.
    gain = min(solved.upper_bound * (1 + 1e-9), ideal)
    return Bound(gain, ideal, width_s, fineness, variables, rows, time.perf_counter() - begin)


def check_scenario(scenario: Scenario) -> None:
    """Raise ExperimentError for what the bound does not hold for."""
    if scenario.gain.name != "tdg":
        raise ExperimentError(f"the bound is on TDG; the scenario's gain is {scenario.gain.name}")
    if scenario.disturbance.noise > 0:
        raise ExperimentError(
            f"the device has noise of {scenario.disturbance.noise:g}, so that an iteration may take any time above 0; "
            "there is a bound without noise only"
        )
    if scenario.arrivals_depend:
        raise ExperimentError(
            "arrivals depend on completions (sessions, clients or max_concurrency), and so on the scheduler; there is "
            "a bound for arrivals that are known beforehand only"
        )
    pools = scenario.deployment.pools
    if scenario.workload.prefixes is not None and any(pool.prefix_store is not None for pool in pools):
        raise ExperimentError(
            "prompts that begin alike cost less with prefix stores than the bound charges; there is a bound without "
            "prefix stores only"
        )
    if any(pool.caches_prefixes(scenario.workload) for pool in pools):
        raise ExperimentError(
            "requests that begin alike share KV memory, and cost less than the bound charges; there is a bound without "
            "prefix caching only (--prefix-caching off)"
        )
    if any(pool.speculation is not None for pool in pools):
        raise ExperimentError(
            "engines speculate, and may emit several tokens of a request in an iteration, where the bound counts one; "
            "there is a bound without speculation only"
        )
    if scenario.incidents:
        raise ExperimentError(
            "engines fail, return or are drained; there is a bound for engines that are there all the time only"
        )
    if scenario.scaler is not None and all(pool.role != "both" for pool in pools):
        raise ExperimentError(
            "a scaler may move decode engines, whose requests prefill engines then go on with; there is a bound for "
            "engines that keep their requests, or do all, only"
        )


def groups_of(scenario: Scenario) -> list[Group]:
    """Groups of engines that the same work may run on: one of all engines, or the prefill and then the decode
    engines.
    """
    pools = list(scenario.deployment.pools)
    disturbance = scenario.disturbance
    # A drift only lengthens iterations; a shift may shorten them.
    factor = min(1.0, disturbance.shift_ratio) if math.isfinite(disturbance.shift_s) else 1.0
    roles = {pool.role for pool in pools}
    if "both" in roles:
        return [_group(pools, factor)]
    return [_group([pool for pool in pools if pool.role == role], factor) for role in ("prefill", "decode")]


def _group(pools: list[Deployment], factor: float) -> Group:
    work: LeastWork = least_work(pools).times(factor)
    return Group(work, sum(pool.engines for pool in pools))

"""The share of the clairvoyant bound that the runs of a comparison reach."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.bounds.cache import cached_bound
from servegym.evaluation.bounds.clairvoyant import Bound, check_scenario, groups_of
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.running import Progress
from servegym.evaluation.summary import SHARE_OF_BOUND
from servegym.simulator.inputs.scenario import Scenario

MOST_REQUESTS = 2000  # requests of a run: at load 1.4, a minute of solving and 430 MiB
Bounds = dict[tuple[float, int], Bound]  # by load and seed


def why_no_bounds(comparison: Comparison) -> str | None:
    """The reason why a comparison's runs cannot be compared with the bound; None: none is known before solving."""
    if comparison.requests_per_run > MOST_REQUESTS:
        return f"a run has {comparison.requests_per_run} requests; the bound is found for at most {MOST_REQUESTS}"
    try:
        for scenario in _scenarios(comparison):
            check_scenario(scenario)
            groups_of(scenario)
    except ExperimentError as error:
        return str(error)
    return None


def find_bounds(comparison: Comparison, directory: Path, progress: Progress = lambda done, all_: None) -> Bounds:
    """The bound of each workload of a comparison, kept in a directory as `cached_bound` does.

    Raises ExperimentError with the reason of `why_no_bounds` if there is none.
    """
    reason = why_no_bounds(comparison)
    if reason is not None:
        raise ExperimentError(reason)
    candidate = next(iter(comparison.candidates.values()))
    bounds: Bounds = {}
    progress(0, len(comparison.workloads))
    for key in comparison.workloads:
        bounds[key] = cached_bound(comparison.scenario(*key, candidate), directory)
        progress(len(bounds), len(comparison.workloads))
    return bounds


def with_shares(comparison: Comparison, cells: pd.DataFrame, bounds: Bounds) -> pd.DataFrame:
    """The cells of `run_comparison` with a column `share_of_bound`.

    NaN for a run that took requests back from engines where some prefill and others decode: a prefill engine then goes
    on with a request that a decode engine had, which the bound leaves out.
    """
    disaggregated = comparison.spec.fleet.is_disaggregated
    shares = [
        math.nan if disaggregated and reroutes > 0 else bounds[load, seed].share(gain)
        for load, seed, gain, reroutes in zip(
            cells["load"], cells["seed"], cells["gain"], cells["reroutes"], strict=True
        )
    ]
    return cells.assign(**{SHARE_OF_BOUND: shares})


def _scenarios(comparison: Comparison) -> list[Scenario]:
    """The scenarios of the first workload, one for each candidate."""
    key = next(iter(comparison.workloads))
    return [comparison.scenario(*key, candidate) for candidate in comparison.candidates.values()]

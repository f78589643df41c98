"""What the runs of a cell served: noted where a simulation of a claim begins, printed among the settings of a page."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.claims.harness.settings import idle_prefill_s
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

Facts = dict[str, Any]
MOST_VALUES = 6  # of an SLO that are told one by one; of more the smallest and the largest
SLOS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")

_noted: contextvars.ContextVar[tuple[str, list[Facts]] | None] = contextvars.ContextVar("noted", default=None)


def begin(scenario: Scenario, record_timeline: bool = False) -> Simulation:
    """A simulation of a cell. What it serves is noted where somebody is `noting`.

    Every measure of a claim begins its simulations here, so that no page prints settings that were not run.
    """
    noting_for = _noted.get()
    if noting_for is not None:
        device, noted = noting_for
        noted.append(facts_of(scenario, device))
    return Simulation(scenario, record_timeline)


@contextlib.contextmanager
def noting(device: str) -> Iterator[list[Facts]]:
    """The facts of the simulations that begin in here, in this thread, on engines of a device."""
    noted: list[Facts] = []
    token = _noted.set((device, noted))
    try:
        yield noted
    finally:
        _noted.reset(token)


def facts_of(scenario: Scenario, device: str) -> Facts:
    """What is served, by which policies.

    engines: how many. requests. rate_per_s: requests over the time of the last arrival; None where all come at 0.
    mean_prompt_tokens, mean_output_tokens. ttft_slo_s, tpot_slo_s, ttlt_slo_s: the finite ones, ascending, if more than
    `MOST_VALUES` the first and the last. largest_share_of_kv: of an engine's KV memory, that the longest request takes.
    beyond_ttft_when_idle: share of the prompts that an idle engine does not prefill within the TTFT SLO.
    """
    table, pools = scenario.workload.table, scenario.deployment.pools
    last_s, longest = float(table["arrival_s"][-1]), table["prompt_tokens"].astype("i8") + table["output_tokens"]
    return {
        "engines": sum(pool.engines for pool in pools),
        "requests": len(table),
        "rate_per_s": len(table) / last_s if last_s > 0 else None,
        "mean_prompt_tokens": float(table["prompt_tokens"].mean()),
        "mean_output_tokens": float(table["output_tokens"].mean()),
        **{slo: values_of(table[slo][np.isfinite(table[slo])]) for slo in SLOS},
        "largest_share_of_kv": float(longest.max()) / min(pool.total_blocks * pool.block_tokens for pool in pools),
        "beyond_ttft_when_idle": float((idle_prefill_s(device, table) >= table["ttft_slo_s"]).mean()),
    }


def values_of(some: np.ndarray) -> list[float]:
    values = np.unique(some).tolist()
    return values if len(values) <= MOST_VALUES else [values[0], values[-1]]


def of_cell(noted: list[Facts]) -> Facts | None:
    """The facts of a cell's runs together, as its row keeps them: None without a run.

    engines, requests, rate_per_s: [least, most]. SLOs: as `facts_of`, of all runs. The rest: means over the runs, and
    the largest share of KV memory.
    """
    if not noted:
        return None

    def all_of(fact: str) -> list[Any]:
        return [facts[fact] for facts in noted if facts[fact] is not None]

    rates = all_of("rate_per_s")
    return {
        **{fact: [min(all_of(fact)), max(all_of(fact))] for fact in ("engines", "requests")},
        "rate_per_s": [min(rates), max(rates)] if rates else None,
        **{slo: values_of(np.concatenate(all_of(slo))) for slo in SLOS},
        **{
            fact: float(np.mean(all_of(fact)))
            for fact in ("mean_prompt_tokens", "mean_output_tokens", "beyond_ttft_when_idle")
        },
        "largest_share_of_kv": max(all_of("largest_share_of_kv")),
    }

"""Fleets as PolyServe compares them: routers and schedulers of many engines, at the highest rate at which 90 % of the
requests have every token in time.

Cells name a fleet by its scheduler, router and engines. A row's goodput is of one seed, by bisection.

A run is judged in steady state and to completion. Times are in *stays*: a stay is the mean time from a request's
arrival to the deadline of its last token, about as long as it is in the system where that is full. Requests that come
after `WARM_UP` stays and in the next `JUDGED` are judged, when each of them has finished or is late; arrivals go on
until then.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.claims.harness.cells import Cell, serving, spec_of
from experiments.claims.harness.goodput import arrivals
from experiments.claims.harness.polyserve_optimal import Optimal, SteadyDevice, optimal_goodput
from experiments.claims.harness.rows import select
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import Setting, idle_prefill_s, idle_tpot_s, profile, words_of
from experiments.claims.harness.violations import violated
from experiments.without_steps import without_steps
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH
from servegym.simulator.runs.simulation import Simulation

DEVICE = "h200-llama3-8b"
# Of the paper's eight traces: Splitwise's is Azure's conversation trace.
FAMILIES = ("uniform-4096-1024", "uniform-512-512", "mooncake-conversation", "polyserve-sharegpt", "azure-conv")
ENGINES = 20
IN_TIME = 0.9  # share of the requests (PolyServe, section 5)
LINK_GB_PER_S = 50.0  # to each decode engine: one 400 Gbit/s port a GPU
WARM_UP, JUDGED = 6.0, 4.0  # stays, in full size: with 1000 requests in a cell, which stand for that
LOOK = 0.25  # stays between two looks at a run, which ends when it is clear what it is asked
ROUGH = 0.25  # of the length: a first search, since an engine's first requests find it empty for too long to be judged
ROUGH_STEP, ROUGH_PRECISION = 1.3, 1.15
PRECISION = 1.04  # lowest rate found to be too much over the highest found to be served; the step of the second search
FIRST, LEAST, MOST = 0.7, 0.02, 8.0  # rates that are tried, as shares of the optimal goodput
SAMPLE, SAMPLE_SEED = 400, 1  # requests that the optimal goodput and a stay are of
CHUNK_TOKENS = 1024  # of an idle engine
SEEDS = 3  # of a size: runs are long


class Fleet(NamedTuple):
    """name: as the paper has it. Engines of one scheduler behind a router."""

    name: str
    scheduler: str
    router: str
    is_disaggregated: bool

    def cell(self, setting: Setting, seed: int, requests: int, engines: int | None = None, share: float = 1.0) -> Cell:
        """engines: None: ENGINES. share: of the optimal goodput, where a claim has runs at given rates."""
        engines = engines or ENGINES
        prefill = optimum(setting, engines, True).prefill_engines if self.is_disaggregated else None
        counts = f"prefill={prefill},decode={engines - prefill}" if prefill else f"engines={engines}"
        return Cell(
            *setting, self.scheduler, share, seed, requests, slo=slo_of(setting.device), engines=counts,
            router=self.router,
        )  # fmt: skip


# PolyServe's worked example has a budget of 1024 tokens; as many requests as memory holds.
FIXED_BUDGET = "sarathi-fcfs:max_num_batched_tokens=1024,max_num_seqs=1024"
POLYSERVE = (
    Fleet("PD-PolyServe", "polyserve", "polyserve", True),
    Fleet("CO-PolyServe", "polyserve", "polyserve", False),
)
BASELINES = (
    Fleet("PD-Random", FIXED_BUDGET, "random", True),
    Fleet("CO-Random", FIXED_BUDGET, "random", False),
    Fleet("PD-Minimal", FIXED_BUDGET, "min-cycle-time", True),
    Fleet("CO-Minimal", FIXED_BUDGET, "min-cycle-time", False),
)
# Of 128, 256, 512, 1024 and 2048 the budget with the highest goodput of 20 engines behind min-load, seed 7000.
# (Except on mooncake-conversation those of 1024 and 2048 are within 3 %.)
BEST_CHUNK = dict.fromkeys(FAMILIES, 1024) | {"mooncake-conversation": 2048}


def co_chunk(setting: Setting) -> Fleet:
    """The static token budget that is best for the trace."""
    tokens = BEST_CHUNK[setting.family]
    return Fleet("CO-Chunk", f"sarathi-fcfs:max_num_batched_tokens={tokens},max_num_seqs=1024", "min-load", False)


def fleets(setting: Setting) -> tuple[Fleet, ...]:
    return (*POLYSERVE, *BASELINES, co_chunk(setting))


@functools.cache
def slo_of(device: str) -> str:
    """PolyServe's recipe, with SLOs that an idle engine can meet: chunks of 1024 tokens, half of 8192 cached."""
    batch = np.zeros(1, BATCH)
    batch["prefill_requests"] = 1
    batch["prefill_tokens"] = batch["longest_prefill_tokens"] = CHUNK_TOKENS
    batch["prefill_tokens_squared"] = CHUNK_TOKENS**2
    batch["prefill_tokens_cached"], batch["prefill_cached_tokens"] = CHUNK_TOKENS * 4096.0, 4096.0
    rate = round(CHUNK_TOKENS / float(profile(device).device.evaluate(batch)[0]))
    return f"polyserve:idle_tpot_s={idle_tpot_s(device)!r},idle_prefill_tokens_per_s={rate}"


@functools.cache
def optimum(setting: Setting, engines: int, is_disaggregated: bool) -> Optimal:
    """PolyServe's optimal goodput (section 3.5) of a trace's lengths and SLOs."""
    device = profile(setting.device)
    steady = SteadyDevice(device.device, device.kv.total_blocks * device.kv.block_tokens)
    return optimal_goodput(sample_of(setting), steady, engines, is_disaggregated)


@functools.cache
def sample_of(setting: Setting) -> Workload:
    """Lengths and SLOs of a trace, for what is computed of it."""
    demand = words_of(setting, slo_of(setting.device))
    return ServingSpec().replaced(**demand, requests=SAMPLE, rate_per_s=1.0).workload(SAMPLE_SEED)


def optimal_per_s(cell: Cell) -> float:
    fleet = serving(cell.device, cell.engines).fleet
    return optimum(cell.setting, fleet.total, fleet.is_disaggregated).requests_per_s


def scenario(cell: Cell, workload: Workload, engines: int | None = None) -> Scenario:
    """All engines have the cell's scheduler; PolyServe's router comes with its scaler. engines: co-located, instead of
    the cell's."""
    spec = spec_of(cell if engines is None else cell._replace(engines=f"engines={engines}"))
    if cell.router == "polyserve":
        spec = spec.replaced(scaler="polyserve")
    if spec.fleet.is_disaggregated:
        spec = spec.replaced(decode_scheduler=without_steps(cell.scheduler), link_gb_per_s=LINK_GB_PER_S)
    return spec.build(workload=workload, deployment=cluster_of(deployment_of(spec)))


@functools.cache
def stay_s(setting: Setting) -> float:
    """Mean time from a request's arrival to the deadline of its last token."""
    table = sample_of(setting).table
    return float((table["ttft_slo_s"] + (table["output_tokens"] - 1) * table["tpot_slo_s"]).mean())


def window_s(cell: Cell, length: float = 1.0) -> tuple[float, float]:
    """Between which times the requests arrive that are judged. length: of a run, over that of the cell."""
    unit_s = stay_s(cell.setting) * length * cell.requests / 1000
    return WARM_UP * unit_s, (WARM_UP + JUDGED) * unit_s


def requests_of(cell: Cell, rate_per_s: float, length: float = 1.0) -> Workload:
    """Arrivals until the last deadline of those that are judged."""
    begin_s, end_s = window_s(cell, length)
    table = arrivals(cell.setting, cell.seed, cell.slo, rate_per_s, end_s).table
    deadline_s = table["ttft_slo_s"] + (table["output_tokens"] - 1) * table["tpot_slo_s"]
    longest_s = float(deadline_s[table["arrival_s"] >= begin_s].max(initial=0.0))
    return arrivals(cell.setting, cell.seed, cell.slo, rate_per_s, end_s + longest_s)


@functools.cache
def _goodput(cell: Cell) -> tuple[float | None, int]:
    optimal = optimal_per_s(cell)
    limits = LEAST * optimal, MOST * optimal
    near, rough_runs = highest(
        lambda rate: is_served(cell, rate, length=ROUGH), FIRST * optimal, ROUGH_STEP, ROUGH_PRECISION, limits
    )
    found, runs = highest(lambda rate: is_served(cell, rate), near or FIRST * optimal, PRECISION, PRECISION, limits)
    return found, rough_runs + runs


def goodput(cell: Cell) -> dict[str, Any]:
    """goodput_per_s: the highest rate found at which enough requests are in time; None where it is not between
    `LEAST` and `MOST`. optimal_per_s: of as many engines. runs: how many it took."""
    found, runs = _goodput(cell)
    return {"goodput_per_s": found, "optimal_per_s": optimal_per_s(cell), "runs": runs}


def highest(
    serves: Callable[[float], bool], first: float, step: float, precision: float, limits: tuple[float, float]
) -> tuple[float | None, int]:
    """The highest rate found to be served, and how many were tried: from the first in steps, which grow, to one on the
    other side, then by bisection. None: there is none between the limits."""
    served, refused, rate, runs = None, None, first, 0
    while served is None or refused is None or refused > precision * served:
        runs += 1
        if serves(rate):
            served = rate
        else:
            refused = rate
        if served is not None and refused is not None:
            rate = math.sqrt(served * refused)
            continue
        if not limits[0] < rate < limits[1]:
            return None, runs
        grown = step if runs < 4 else step**2
        rate = rate * grown if refused is None else rate / grown
    return served, runs


def is_served(cell: Cell, rate_per_s: float, engines: int | None = None, length: float = 1.0) -> bool:
    """Whether enough of the requests judged are in time. length: of the run, over that of the cell."""
    workload = requests_of(cell, rate_per_s, length)
    window = window_s(cell, length)
    those = judged(cell, workload, window)
    late = settled(begin(scenario(cell, workload, engines)), those, window, only_enough=True)
    return bool(late.sum() <= (1 - IN_TIME) * those.sum())


def judged(cell: Cell, workload: Workload, window: tuple[float, float]) -> np.ndarray:
    """bool[requests]: those that come between two times and whose first token an idle engine has in time (to others the
    paper assigns no SLO)."""
    table = workload.table
    feasible = idle_prefill_s(cell.device, table, CHUNK_TOKENS) < table["ttft_slo_s"]
    return feasible & (table["arrival_s"] >= window[0]) & (table["arrival_s"] < window[1])


def settled(run: Simulation, those: np.ndarray, window: tuple[float, float], only_enough: bool = False) -> np.ndarray:
    """bool[requests]: which of those judged have a late token, when each of them has finished or has one.

    only_enough: as soon as it is clear whether few enough are late; those still open then count as late, so that never
    is anything in time that has not finished.
    """
    whole, most = run.scenario, (1 - IN_TIME) * those.sum()
    time_s, step_s = window[0], LOOK * (window[1] - window[0]) / JUDGED
    while True:
        time_s += step_s
        run.scenario = dataclasses.replace(whole, until_s=time_s)
        run.run()
        late = those & violated(run.arrays, whole.workload, time_s)
        still_open = those & ~late & ~np.isfinite(run.arrays.outcomes["finish_s"])
        clear = late.sum() > most or late.sum() + still_open.sum() <= most
        if not still_open.any() or (only_enough and clear):
            return late | still_open


def in_time(cell: Cell, rate_per_s: float) -> dict[str, float]:
    """Shares of the requests judged that have every token in time: of all, and of each TPOT."""
    workload, window = requests_of(cell, rate_per_s), window_s(cell)
    those = judged(cell, workload, window)
    late = settled(begin(scenario(cell, workload)), those, window)
    tpot_s = workload.table["tpot_slo_s"]
    shares = {f"{value * 1e3:g} ms": those & (tpot_s == value) for value in np.unique(tpot_s)}
    groups = {"all": those, **{name: some for name, some in shares.items() if some.any()}}
    return {name: float(1 - late[some].mean()) if some.any() else 1.0 for name, some in groups.items()}


def of_fleet(rows: pd.DataFrame, fleet: Fleet, column: str, as_numbers: bool = True, **where: Any) -> Any:
    """A column of a fleet, by seed: float64[seeds], or as it is. where: more fields of the cells."""
    there = "prefill" if fleet.is_disaggregated else "engines"
    named = {"scheduler": fleet.scheduler, "router": fleet.router}
    here = select(rows[rows["engines"].str.startswith(there)], **named, **where)
    if here["seed"].duplicated().any():
        raise ValueError(f"{fleet.name}, {where} do not name one cell a seed")
    return here[column].to_numpy("f8") if as_numbers else here[column].tolist()

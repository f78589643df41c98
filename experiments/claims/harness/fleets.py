"""Fleets as PolyServe compares them: routers and schedulers of many engines, at the highest rate at which 90 % of the
requests have every token in time.

Cells name a fleet by its scheduler, router and engines. A row's goodput is of one seed, by bisection.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.experiments.bounds.polyserve_optimal import Optimal, SteadyDevice, optimal_goodput
from servegym.experiments.claims.harness import goodput as searching
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.goodput import arrivals
from servegym.experiments.claims.harness.known_device import KnownDevice
from servegym.experiments.claims.harness.rows import select
from servegym.experiments.claims.harness.served import begin
from servegym.experiments.claims.harness.settings import Setting, idle_prefill_s, idle_tpot_s, profile
from servegym.experiments.claims.harness.violations import violated
from servegym.experiments.deployments import Engines
from servegym.latency_models.profile import Profile
from servegym.simulator.cluster import Cluster, cluster_of
from servegym.simulator.simulation import Scenario
from servegym.simulator.types import BATCH
from servegym.simulator.workload import Workload
from servegym.traces.workloads import build_workload

if TYPE_CHECKING:
    import pandas as pd

MEASURED_WITH = (sys.modules[__name__], searching)
DEVICE = "h200-llama3-8b"
FAMILIES = ("uniform-4096-1024", "uniform-512-512", "mooncake-conversation", "sharegpt", "azure-conv")
ENGINES = 20
IN_TIME = 0.9  # share of the requests (PolyServe, section 5)
LINK_GB_PER_S = 50.0  # to each decode engine: one 400 Gbit/s port a GPU
# Seconds of arrivals in full size: twice as long as most answers take and more. A run is judged by those who come in
# its second half, but for the last tenth; what has not been late when it ends is in time.
DURATION_S = {
    "uniform-4096-1024": 100.0, "uniform-512-512": 36.0, "mooncake-conversation": 60.0, "sharegpt": 40.0,
    "azure-conv": 24.0,
}  # fmt: skip
JUDGED = (0.5, 0.9)
PRECISION = 1.03  # lowest rate found to be too much over the highest found to be served
STEP = 1.2  # from the first rate, up or down to one on the other side
FIRST, LEAST, MOST = 0.7, 0.02, 8.0  # rates that are tried, as shares of the optimal goodput
LOOKS = 6  # times in the second half at which a run is looked at, and given up where it has failed already
SAMPLE, SAMPLE_SEED = 400, 1  # requests that the optimal goodput is of
CHUNK_TOKENS = 1024  # of an idle engine


class Fleet(NamedTuple):
    """name: as the paper has it. Engines of one scheduler behind a router. knows_device: policies have the device
    model for their estimator (PolyServe's map of batch and KV sizes to times is from profiling), not the profile's fit.
    """

    name: str
    scheduler: str
    router: str
    is_disaggregated: bool
    knows_device: bool = True

    def cell(self, setting: Setting, seed: int, requests: int, engines: int = ENGINES, share: float = 1.0) -> Cell:
        """share: of the optimal goodput, where a claim has runs at given rates."""
        prefill = optimum(setting, engines, True).prefill_engines if self.is_disaggregated else None
        counts = f"prefill={prefill},decode={engines - prefill}" if prefill else f"engines={engines}"
        return Cell(
            *setting, self.scheduler, share, seed, requests, slo=slo_of(setting.device), engines=counts,
            router=self.router, exact_estimator=self.knows_device,
        )  # fmt: skip


# PolyServe's worked example has a budget of 1024 tokens; as many requests as memory holds.
FIXED_BUDGET = "sarathi-fcfs:token_budget=1024,max_sequences=1024"
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
    return Fleet("CO-Chunk", f"sarathi-fcfs:token_budget={tokens},max_sequences=1024", "min-load", False)


def fleets(setting: Setting) -> tuple[Fleet, ...]:
    return (*POLYSERVE, *BASELINES, co_chunk(setting))


def serving(cell: Cell) -> Engines:
    """The engines of a cell."""
    numbers = {name: int(number) for name, number in (pair.split("=") for pair in cell.engines.split(","))}
    return Engines(numbers.get("engines", 1), numbers.get("prefill", 0), numbers.get("decode", 0))


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
    sample = build_workload(
        setting.family, requests=SAMPLE, rate_per_s=1.0, slo=slo_of(setting.device), seed=SAMPLE_SEED
    )
    return optimal_goodput(sample, steady, engines, is_disaggregated)


def optimal_per_s(cell: Cell) -> float:
    engines = serving(cell)
    return optimum(cell.setting, engines.total, engines.is_disaggregated).requests_per_s


def deployment(device: Profile, engines: Engines, scheduler: str, knows_device: bool) -> Cluster:
    """All engines have the scheduler. knows_device: and the device model for their estimator."""
    whole = dataclasses.replace(
        engines, decode_scheduler=scheduler, link_gb_per_s=LINK_GB_PER_S
    ) if engines.is_disaggregated else engines  # fmt: skip
    made = cluster_of(whole.deployment(device))
    if not knows_device:
        return made
    pools = tuple(dataclasses.replace(pool, estimator=KnownDevice(device.device)) for pool in made.pools)
    return dataclasses.replace(made, pools=pools)


def scenario(cell: Cell, workload: Workload, engines: Engines | None = None) -> Scenario:
    """PolyServe's router comes with its scaler."""
    scheduler = find_scheduler(cell.scheduler)
    return Scenario(
        workload,
        deployment(profile(cell.device), engines or serving(cell), cell.scheduler, cell.exact_estimator),
        scheduler,
        router=find_router(cell.router),
        scaler=find_scaler("polyserve") if cell.router == "polyserve" else None,
    )


def duration_s(cell: Cell) -> float:
    """Of the arrivals: a cell has 1000 requests in full size, and fewer in a smaller one."""
    return DURATION_S[cell.family] * cell.requests / 1000


def goodput(cell: Cell) -> dict[str, Any]:
    """goodput_per_s: the highest rate found at which enough requests are in time; None where it is not between
    `LEAST` and `MOST`. optimal_per_s: of as many engines. runs: how many it took."""
    optimal = optimal_per_s(cell)
    runs, served, refused, rate = 0, None, None, FIRST * optimal
    while refused is None or served is None or refused > PRECISION * served:
        runs += 1
        if is_served(cell, rate):
            served = rate
        else:
            refused = rate
        if refused is None:
            if rate >= MOST * optimal:
                break
            rate *= STEP
        elif served is None:
            if rate <= LEAST * optimal:
                break
            rate /= STEP if runs < 3 else STEP**2
        else:
            rate = math.sqrt(served * refused)
    found = served is not None and refused is not None
    return {"goodput_per_s": served if found else None, "optimal_per_s": optimal, "runs": runs}


def is_served(cell: Cell, rate_per_s: float, engines: Engines | None = None) -> bool:
    """Whether enough of the requests judged are in time."""
    return in_time(cell, rate_per_s, engines, give_up=True) is not None


def judged(cell: Cell, workload: Workload, end_s: float) -> np.ndarray:
    """bool[requests]: those who come in the second half of a run and whose first token an idle engine has in time (to
    others the paper assigns no SLO)."""
    table = workload.table
    feasible = idle_prefill_s(cell.device, table, CHUNK_TOKENS) < table["ttft_slo_s"]
    return feasible & (table["arrival_s"] >= JUDGED[0] * end_s) & (table["arrival_s"] < JUDGED[1] * end_s)


def in_time(
    cell: Cell, rate_per_s: float, engines: Engines | None = None, give_up: bool = False
) -> dict[str, float] | None:
    """Shares of the requests judged that have every token in time: of all, and of each TPOT. give_up: None as soon as
    too few are."""
    workload = arrivals(cell.setting, cell.seed, cell.slo, rate_per_s, duration_s(cell))
    end_s = float(workload.table["arrival_s"][-1])
    whole, those = scenario(cell, workload, engines), judged(cell, workload, end_s)
    run, most = begin(whole), (1 - IN_TIME) * those.sum()
    for time_s in np.linspace(JUDGED[0] * end_s, end_s, LOOKS + 1)[1:]:
        run.scenario = dataclasses.replace(whole, until_s=float(time_s))
        run.run()
        late = violated(run.arrays, workload, float(time_s))
        if give_up and late[those].sum() > most:
            return None
    tpot_s = workload.table["tpot_slo_s"]
    shares = {f"{value * 1e3:g} ms": those & (tpot_s == value) for value in np.unique(tpot_s)}
    groups = {"all": those, **{name: some for name, some in shares.items() if some.any()}}
    return {name: float(1 - late[some].mean()) if some.any() else 1.0 for name, some in groups.items()}


def of_fleet(rows: pd.DataFrame, fleet: Fleet, column: str, as_numbers: bool = True, **where: Any) -> Any:
    """A column of a fleet, by seed: float64[seeds], or as it is. where: more fields of the cells."""
    there = "prefill" if fleet.is_disaggregated else "engines"
    named = {"scheduler": fleet.scheduler, "router": fleet.router, "exact_estimator": fleet.knows_device}
    here = select(rows[rows["engines"].str.startswith(there)], **named, **where)
    if here["seed"].duplicated().any():
        raise ValueError(f"{fleet.name}, {where} do not name one cell a seed")
    return here[column].to_numpy("f8") if as_numbers else here[column].tolist()

"""PolyServe, section 5.6: how many requests a second its router arranges."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd

from experiments.benchmarks.routers import copied, route_all
from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim
from experiments.claims.harness.fleets import DEVICE, POLYSERVE, of_fleet, optimal_per_s, scenario
from experiments.claims.harness.goodput import arrivals
from experiments.claims.harness.served import begin

ENGINES = 128
DURATION_S = 100.0  # of the arrivals, in full size
LOAD = 0.7  # of the optimal goodput of the mode
DECISIONS = 2000  # that are timed by themselves, in full size
FAST = Range(low=4825.0)  # requests per second


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for fleet in POLYSERVE:
            yield fleet.cell(setting, seed, size.requests, ENGINES)


def measure(cell: Cell) -> dict[str, Any]:
    """simulated_per_s: requests over the processor time of all of a run, engines and all, so less than what the router
    alone could do. routed_per_s: requests routed a second by themselves, one after the other, at the middle of the run;
    prefill and decode are two decisions."""
    rate = LOAD * optimal_per_s(cell)
    workload = arrivals(cell.setting, cell.seed, cell.slo, rate, DURATION_S * cell.requests / 1000)
    whole = scenario(cell, workload)
    begin(dataclasses.replace(whole, until_s=0.0)).run()  # compiles, or reads what was compiled
    run = begin(whole)
    begin_s = time.thread_time()
    run.run()
    simulated_s = time.thread_time() - begin_s
    return {"simulated_per_s": len(workload) / simulated_s, "routed_per_s": routed_per_s(whole, cell.requests)}


def routed_per_s(whole: Any, requests: int) -> float:
    arrival_s = whole.workload.table["arrival_s"]
    run = begin(dataclasses.replace(whole, until_s=float(arrival_s[len(arrival_s) // 2])))
    run.run()
    first = int(run.arrays.status[0].next_arrival)
    count = min(len(arrival_s) - first, max(1, DECISIONS * requests // 1000))
    for repetition in range(2):  # the first compiles, or reads what was compiled
        arrays, router_state = copied(run.arrays), copied(run.router_state)
        now_s = float(arrays.status[0].now_s)
        coming = arrays.requests[first : first + count]
        coming["first_deadline_s"] += now_s - coming["arrival_s"]
        coming["arrival_s"] = now_s
        begin_s = time.thread_time()
        route_all.entry(arrays, router_state, now_s, first, count if repetition else 1)
    return count / (time.thread_time() - begin_s)


@claim("polyserve-speed", cells=cells, measure=measure, families=("uniform-4096-1024",), devices=(DEVICE,))
def judge(rows: pd.DataFrame) -> list[Check]:
    return [
        *(Check(f"{fleet.name}: requests simulated a second", of_fleet(rows, fleet, "simulated_per_s"), FAST)
          for fleet in POLYSERVE),
        *(Check(f"{fleet.name}: requests routed a second", of_fleet(rows, fleet, "routed_per_s"), FAST,
                "routing alone, at one moment of a run") for fleet in POLYSERVE),
    ]  # fmt: skip

"""PolyServe, Figure 7: attainment while the shares of the TPOT tiers change."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim
from experiments.claims.harness.fleets import (
    BASELINES,
    DEVICE,
    POLYSERVE,
    SEEDS,
    co_chunk,
    fleets,
    judged,
    of_fleet,
    optimal_per_s,
    requests_of,
    scenario,
    settled,
    window_s,
)
from experiments.claims.harness.served import begin
from servegym.simulator.inputs.workload import Workload

ENGINES = 10  # for processor time; the paper: 20
LOADS = (0.6, 0.85)  # rates, as shares of the optimal goodput of the fleet, at the paper's shares of the tiers
TURNED = "40-30-20-10"  # shares of the tiers, tightest first, when they are turned round
TURNS = 4  # times in the judged part of a run that shares change
HIGH = Range(low=0.9)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds[:SEEDS]:
        for load in LOADS:
            for fleet in fleets(setting):
                yield fleet.cell(setting, seed, size.requests, engines=ENGINES, share=load)


def turning(cell: Cell, rate_per_s: float) -> Workload:
    """Requests of which those of every second part of the run have the tiers turned round; else the same."""
    plain = requests_of(cell, rate_per_s)
    turned = requests_of(cell._replace(slo=f"{cell.slo},shares={TURNED}"), rate_per_s)
    count = min(len(plain), len(turned))
    begin_s, end_s = window_s(cell)
    part = (plain.table["arrival_s"][:count] - begin_s) // ((end_s - begin_s) / TURNS)
    tpot_s = plain.table["tpot_slo_s"].copy()
    tpot_s[:count] = np.where(part % 2 == 1, turned.table["tpot_slo_s"][:count], tpot_s[:count])
    return plain.replace(tpot_slo_s=tpot_s)


def measure(cell: Cell) -> dict[str, Any]:
    """in_time: share of the requests judged that have every token in time."""
    rate = cell.load * optimal_per_s(cell)
    workload, window = turning(cell, rate), window_s(cell)
    those = judged(cell, workload, window)
    late = settled(begin(scenario(cell, workload)), those, window)
    return {"in_time": float(1 - late[those].mean()) if those.any() else 1.0}


@claim("polyserve-fig7", cells=cells, measure=measure, families=("uniform-512-512",), devices=(DEVICE,))
def judge(rows: pd.DataFrame) -> list[Check]:
    setting = Setting(str(rows["family"].iloc[0]), str(rows["device"].iloc[0]))
    checks = []
    for load in LOADS:
        shares = {fleet.name: of_fleet(rows, fleet, "in_time", load=load) for fleet in fleets(setting)}
        best = np.max([shares[fleet.name] for fleet in (*BASELINES, co_chunk(setting))], axis=0)
        for fleet in POLYSERVE:
            checks.append(Check(f"{fleet.name}, share in time, rate {load:g}", shares[fleet.name], HIGH))
            checks.append(
                Check(f"{fleet.name} - best baseline, rate {load:g}", shares[fleet.name] - best, Range(low=-0.01))
            )
    return checks

"""QoServe, Figure 10: median and p95 latency of each class as load grows."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Check, Range, claim, drawing, values
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.grids import grid, of_hours
from experiments.claims.harness.violations import CLASSES, LONGEST_TTLT_S, slo_of
from experiments.claims.qoserve_fig11 import SCHEDULERS

FCFS, EDF, SRPF, QO = SCHEDULERS
LOADS = (0.7, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6)
HIGH = 1.1
HOURS = 1.0  # of arrivals in full size
QUANTILES = {"p50": 0.5, "p95": 0.95}
HIGHER = Range(1.2, 1.6)  # the paper: up to 1.4


def measure(cell: Cell) -> dict[str, Any]:
    """Quantiles of each class's latency over its SLO: TTFT of the interactive one, time to the last token of others.

    The run ends when the last deadlines are past; what has not come by then counts as coming then.
    """
    run = simulation(cell)
    table = run.scenario.workload.table
    end_s = float(table["arrival_s"][-1]) + LONGEST_TTLT_S
    run.scenario = dataclasses.replace(run.scenario, until_s=end_s)
    run.run()
    by_ttlt, outcomes = np.isfinite(table["ttlt_slo_s"]), run.arrays.outcomes
    done_s = np.where(by_ttlt, outcomes["finish_s"], outcomes["first_token_s"])
    over = (np.where(np.isnan(done_s), end_s, done_s) - table["arrival_s"]) / np.where(
        by_ttlt, table["ttlt_slo_s"], table["ttft_slo_s"]
    )
    return {
        f"{name} {kind}": float(np.quantile(over[table["application"] == application], share))
        for kind, application in CLASSES.items()
        for name, share in QUANTILES.items()
    }


def by_load(rows: pd.DataFrame, quantile: str, name: str) -> np.ndarray:
    """float64[loads, seeds]: the worst class's latency over its SLO."""
    return np.array([
        np.max([values(rows, f"{quantile} {kind}", scheduler=SCHEDULERS[name], load=load) for kind in CLASSES], axis=0)
        for load in LOADS
    ])  # fmt: skip


def highest_load(over: np.ndarray) -> np.ndarray:
    """float64[seeds]: load at which a latency passes its SLO, between measured loads linearly; the last if it does not.
    over: float64[loads, seeds]."""
    found = np.full(over.shape[1], LOADS[-1])
    for seed, one in enumerate(over.T):
        late = np.flatnonzero(one >= 1)
        if len(late):
            i = max(1, int(late[0]))
            part = np.clip((1 - one[i - 1]) / (one[i] - one[i - 1]), 0, 1) if one[i] > one[i - 1] else 0.0
            found[seed] = LOADS[i - 1] + part * (LOADS[i] - LOADS[i - 1])
    return found


def picture(rows: pd.DataFrame, path: Path) -> None:
    figure, grid = drawing.panel_rows(list(CLASSES), "load", [f"{name} over SLO" for name in QUANTILES])
    for line, quantile in zip(grid, QUANTILES, strict=True):
        for axes, kind in zip(line, CLASSES, strict=True):
            for style, (name, scheduler) in enumerate(SCHEDULERS.items()):
                column = f"{quantile} {kind}"
                drawing.load_curve(axes, rows, column, LOADS, name, style, scheduler=scheduler)
            axes.set_yscale("log")
    drawing.save(figure, grid[0], path)


@claim(
    "qoserve-fig10",
    cells=grid(SCHEDULERS.values(), LOADS, of_hours(HOURS), slo_of),
    measure=measure,
    families=("qoserve-code",),
    devices=("a100-llama3-8b",),
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    p95 = {name: by_load(rows, "p95", name) for name in SCHEDULERS}
    reached = {name: highest_load(over) for name, over in p95.items()}
    p50 = {name: by_load(rows, "p50", name)[LOADS.index(HIGH)] for name in SCHEDULERS}
    best = np.max([reached[name] for name in (FCFS, EDF, SRPF)], axis=0)
    return [
        Check("load with p95 of all classes in time, EDF - FCFS", reached[EDF] - reached[FCFS], Range(low=0)),
        Check("load with p95 of all classes in time, QoServe over the best other", reached[QO] / best, HIGHER),
        Check(f"p95 over SLO, SRPF, load {HIGH:g}", p95[SRPF][LOADS.index(HIGH)], Range(low=1)),
        *(Check(f"p50 over SLO, {name} over {other}, load {HIGH:g}", p50[name] / p50[other], Range(high=0.5))
          for name in (SRPF, QO) for other in (FCFS, EDF)),
    ]  # fmt: skip

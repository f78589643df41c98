"""ProServe, Figure 14: TTFT and TPOT of high and low priority."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import BELOW_0, Check, Range, claim, drawing, values
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.grids import grid, longer
from experiments.claims.harness.measures import PRIORITIES

SLIDE, FCFS, PRIORITY = "slide-batching", "sarathi-fcfs", "sarathi-priority"
SCHEDULERS = {"SlideBatching": SLIDE, "Sarathi-FCFS": FCFS, "Sarathi-Priority": PRIORITY}
LOAD = 1.0
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
BALANCED, APART = Range(-0.1, 0.1), Range(low=0.3)  # late first tokens, low less high priority
MORE = Range(low=0.1)


def measure(cell: Cell) -> dict[str, Any]:
    """By priority: share of first tokens late, and quantiles of TTFT and mean TPOT in s (of answers of two tokens or
    more)."""
    requests = simulation(cell).run().requests
    measured: dict[str, Any] = {}
    for name, priority in PRIORITIES.items():
        some = requests[requests["priority"] == priority]
        measured[f"ttft_late_{name}"] = float((some["ttft_s"] >= some["ttft_slo_s"]).mean())
        for metric in ("ttft", "tpot"):
            measured[f"{metric}_{name}_s"] = np.nanquantile(some[f"{metric}_s"], QUANTILES).tolist()
    return measured


def quantiles(rows: pd.DataFrame, metric: str, name: str, scheduler: str) -> np.ndarray:
    """float64[seeds, quantiles], s."""
    here = rows[rows["scheduler"] == scheduler].sort_values("seed", kind="stable")
    return np.array(here[f"{metric}_{name}_s"].tolist(), "f8")


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    figure, row = drawing.panels(["TTFT, s", "TPOT, s"], "share of the requests", "", share_y=False)
    for axes, metric in zip(row, ("ttft", "tpot"), strict=True):
        for style, (label, scheduler) in enumerate(SCHEDULERS.items()):
            for half, name in enumerate(PRIORITIES):
                of = quantiles(here, metric, name, scheduler)
                drawing.curve(axes, QUANTILES, of.T, f"{label}, {name}", 2 * style + half)
    row[0].set_yscale("log")
    drawing.save(figure, row, path)


@claim("proserve-fig14", cells=grid(SCHEDULERS.values(), (LOAD,), longer), measure=measure, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    late = {
        scheduler: {name: values(rows, f"ttft_late_{name}", scheduler=scheduler) for name in PRIORITIES}
        for scheduler in SCHEDULERS.values()
    }
    middle = QUANTILES.index(0.5)
    tpot = {scheduler: np.mean([quantiles(rows, "tpot", name, scheduler)[:, middle] for name in PRIORITIES], axis=0)
            for scheduler in SCHEDULERS.values()}  # fmt: skip
    return [
        Check("late first tokens, low - high priority, SlideBatching", late[SLIDE]["low"] - late[SLIDE]["high"],
              BALANCED),
        Check("late first tokens, low - high priority, Sarathi-Priority",
              late[PRIORITY]["low"] - late[PRIORITY]["high"], APART),
        Check("late first tokens of low priority, Sarathi-Priority - SlideBatching",
              late[PRIORITY]["low"] - late[SLIDE]["low"], MORE),
        *(Check(f"late first tokens of {name} priority, Sarathi-FCFS - SlideBatching",
                late[FCFS][name] - late[SLIDE][name], MORE) for name in PRIORITIES),
        Check("median TPOT, Sarathi-FCFS over SlideBatching - 1", tpot[FCFS] / tpot[SLIDE] - 1, BELOW_0),
    ]  # fmt: skip

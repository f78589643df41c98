"""ProServe, Figure 2: strict priority and first come first served, overall and by priority."""

import pandas as pd

from experiments.claims.harness import BELOW_0, Check, Range, claim, values
from experiments.claims.harness.grids import grid, longer
from experiments.claims.harness.measures import serve

FCFS, PRIORITY = "sarathi-fcfs", "sarathi-priority"
LOAD, HIGHER = 0.7, 1.0
ALIKE = Range(-0.05, 0.05)  # high less low priority under FCFS
AHEAD = Range(low=0.05)


def checks(rows: pd.DataFrame, load: float, examines: str = "") -> list[Check]:
    of = {
        scheduler: {
            group: values(rows, f"slo_attainment{group}", scheduler=scheduler, load=load)
            for group in ("", "_high_priority", "_low_priority")
        }
        for scheduler in (FCFS, PRIORITY)
    }
    high = of[PRIORITY]["_high_priority"]
    return [
        Check("FCFS, high - low priority", of[FCFS]["_high_priority"] - of[FCFS]["_low_priority"], ALIKE, examines),
        Check("high priority, Priority - FCFS", high - of[FCFS]["_high_priority"], AHEAD, examines),
        Check("Priority, high - low priority", high - of[PRIORITY]["_low_priority"], AHEAD, examines),
        Check("all, Priority - FCFS", of[PRIORITY][""] - of[FCFS][""], BELOW_0, examines),
    ]


@claim("proserve-fig2", cells=grid((FCFS, PRIORITY), (LOAD, HIGHER), longer), measure=serve)
def judge(rows: pd.DataFrame) -> list[Check]:
    return [*checks(rows, LOAD), *checks(rows, HIGHER, f"load {HIGHER:g}")]

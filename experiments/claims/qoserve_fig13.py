"""QoServe, Figure 13: p99 latency of important requests, minute by minute, through bursts of overload."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims import qoserve_fig12
from experiments.claims.harness import Check, Range, Setting, Size, claim, series
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.violations import LONGEST_TTLT_S

FCFS, EDF, QO = list(qoserve_fig12.SCHEDULERS)[:3]
SCHEDULERS = {name: qoserve_fig12.SCHEDULERS[name] for name in (FCFS, EDF, QO)}
WINDOW_S = 60.0
PHASES = round(qoserve_fig12.HOURS * 3600 / qoserve_fig12.PHASE_S)  # low and high load in turn, low first
IN_TIME, LATE = Range(high=0.1), Range(low=0.9)  # share of the windows whose p99 is beyond the SLO


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    return (cell for cell in qoserve_fig12.cells(setting, size) if cell.scheduler in SCHEDULERS.values())


def measure(cell: Cell) -> dict[str, Any]:
    """late: for each phase, the share of the minutes in which p99 of the interactive important requests that arrive in
    it has a TTFT beyond the SLO; of no requests, none."""
    run = simulation(cell)
    table = run.scenario.workload.table
    end_s = float(table["arrival_s"][-1]) + LONGEST_TTLT_S
    run.scenario = dataclasses.replace(run.scenario, until_s=end_s)
    run.run()
    first_s = run.arrays.outcomes["first_token_s"]
    over = (np.where(np.isnan(first_s), end_s, first_s) - table["arrival_s"]) / table["ttft_slo_s"]
    those = (table["priority"] == 0) & np.isinf(table["ttlt_slo_s"])
    phase_s = qoserve_fig12.PHASE_S * float(table["arrival_s"][-1]) / (qoserve_fig12.HOURS * 3600)
    window_s = WINDOW_S * phase_s / qoserve_fig12.PHASE_S
    late: list[list[bool]] = [[] for _ in range(PHASES)]
    window = (table["arrival_s"] // window_s).astype("i8")
    for one in np.unique(window[those]):
        here = those & (window == one)
        phase = min(PHASES - 1, int(one * window_s // phase_s))
        late[phase].append(bool(np.quantile(over[here], 0.99) >= 1))
    return {"late": [float(np.mean(some)) if some else 0.0 for some in late]}


@claim("qoserve-fig13", cells=cells, measure=measure, families=("qoserve-code",), devices=(qoserve_fig12.DEVICE,))
def judge(rows: pd.DataFrame) -> list[Check]:
    late = {name: np.array(series(rows, "late", scheduler=scheduler)) for name, scheduler in SCHEDULERS.items()}
    return [
        Check("FCFS, low load after the first burst", late[FCFS][:, 2], LATE),
        Check("FCFS, from the second burst on", late[FCFS][:, 3:].mean(1), LATE),
        Check("first burst, EDF - FCFS", late[EDF][:, 1] - late[FCFS][:, 1], Range(high=0)),
        Check("EDF, from the third burst on", late[EDF][:, 5:].mean(1), LATE),
        Check("QoServe, all phases", late[QO].mean(1), IN_TIME),
    ]

"""QoServe, Figure 8: goodput of a prefill engine in disaggregated serving."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, drawing, grid, values
from experiments.claims.harness.goodput import goodput
from experiments.claims.harness.violations import slo_of

DEVICES = ("a100-llama3-8b", "a100-llama3-70b-tp4")
CHUNK = "max_num_batched_tokens=8192"
SCHEDULERS = {
    "Sarathi-FCFS": f"sarathi-fcfs:{CHUNK}",
    "Sarathi-EDF": f"sarathi-edf:{CHUNK}",
    "QoServe": f"qoserve:dynamic_chunking=off,{CHUNK}",
}
FCFS, EDF, QO = SCHEDULERS
EDF_RELEGATING = f"qoserve:dynamic_chunking=off,alpha_s_per_token=0,{CHUNK}"  # no hybrid priority
ENGINES = "prefill=1,decode=2"
HOURS = 4.0  # of arrivals in full size, as in the paper
ABOVE = Range(low=1.0)


def measure(cell: Cell) -> dict[str, Any]:
    return goodput(cell, HOURS * 3600 * cell.requests / 1000)


def goodput_of(rows: pd.DataFrame, scheduler: str) -> np.ndarray:
    """float64[seeds], requests per second of the one prefill engine."""
    return values(rows, "goodput_per_s", scheduler=scheduler)


def picture(rows: pd.DataFrame, path: Path) -> None:
    devices = list(dict.fromkeys(rows["device"]))
    figure, row = drawing.panels(devices, "", "goodput, requests/s", size=(3.2, 2.6), share_y=False)
    for axes, device in zip(row, devices, strict=True):
        here = rows[rows["device"] == device]
        drawing.bars(axes, (goodput_of(here, scheduler) for scheduler in SCHEDULERS.values()))
        axes.set_xticks(range(len(SCHEDULERS)), list(SCHEDULERS))
    figure.savefig(path, dpi=drawing.DOTS_PER_INCH)


@claim(
    "qoserve-fig8",
    cells=grid((*SCHEDULERS.values(), EDF_RELEGATING), (1.0,), slo=slo_of, engines=ENGINES),
    measure=measure,
    families=("qoserve-conv",),
    devices=DEVICES,
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    of = {name: goodput_of(rows, scheduler) for name, scheduler in SCHEDULERS.items()}
    relegating = goodput_of(rows, EDF_RELEGATING)
    return [
        Check(f"QoServe over {FCFS}", of[QO] / of[FCFS], ABOVE),
        Check(f"QoServe over {EDF}", of[QO] / of[EDF], ABOVE),
        Check(f"relegation alone over {EDF}", relegating / of[EDF], ABOVE, "what adds to it"),
        Check("hybrid priority over relegation alone", of[QO] / relegating, ABOVE, "what adds to it"),
    ]

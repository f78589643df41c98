"""QoServe, section 4.5.1: chunking that sees the slack of decodes against Medha's, which holds a fixed TBT."""

import itertools
from typing import Any

import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, grid, values
from experiments.claims.harness.goodput import goodput
from experiments.claims.harness.violations import slo_of

MEDHA = "medha"
FCFS_ONLY = "alpha_s_per_token=0,relegation=off,selective_preemption=off"  # one class: by deadline is by arrival
SLACK = f"qoserve:{FCFS_ONLY}"
OPTIONS = {
    "chunk sizes of the public code": (f"qoserve:{FCFS_ONLY},dynamic_chunking=code", MEDHA),
    "no margin for the predictor's error": (f"qoserve:{FCFS_ONLY},safety=1", "medha:safety=1"),
    "no largest chunk": (f"qoserve:{FCFS_ONLY},largest_chunk_tokens=1000000", "medha:largest_chunk_tokens=1000000"),
}
HOURS = 4.0  # of arrivals in full size
GAIN = Range(1.1, 1.35)  # around the paper's 1.23


def measure(cell: Cell) -> dict[str, Any]:
    return goodput(cell, HOURS * 3600 * cell.requests / 1000, interactive=True)


@claim(
    "qoserve-medha",
    cells=grid(dict.fromkeys([MEDHA, SLACK, *itertools.chain(*OPTIONS.values())]), (1.0,), slo=slo_of),
    measure=measure,
    families=("qoserve-long",),
    devices=("a100-llama3-8b",),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def ratio(slack: str, medha: str) -> Any:
        return values(rows, "goodput_per_s", scheduler=slack) / values(rows, "goodput_per_s", scheduler=medha)

    return [
        Check("slack-aware over Medha", ratio(SLACK, MEDHA), GAIN),
        *(Check("slack-aware over Medha", ratio(*pair), GAIN, examines) for examines, pair in OPTIONS.items()),
    ]

"""QoServe, Figure 5: what relegating a few requests does for the median one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import Check, Range
from experiments.claims.harness.claim import claim
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.violations import serve_violations, slo_of

if TYPE_CHECKING:
    import pandas as pd

SCHEDULERS = {"eager relegation": "qoserve", "none": "qoserve:relegation=off"}
WITH, WITHOUT = SCHEDULERS.values()
LOADS = (0.8, 1.2, 1.4, 1.6)
LOW, SLIGHT, HIGH = 0.8, 1.4, 1.6
HOURS = 1.0  # of arrivals in full size
FEW = Range(high=0.1)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for load in LOADS:
            requests = round(load * saturation_per_s(setting) * HOURS * 3600 * size.requests / 1000)
            for scheduler in SCHEDULERS.values():
                yield Cell(*setting, scheduler, load, seed, requests, slo=slo_of(setting.device))


def picture(rows: pd.DataFrame, path: Path) -> None:
    from experiments.claims.harness import drawing

    shown = {"latency_p50_s": "median time to the last token, s", "violations": "violations, share"}
    figure, row = drawing.panels(list(shown.values()), "load", "", share_y=False)
    for axes, column in zip(row, shown, strict=True):
        for style, (name, scheduler) in enumerate(SCHEDULERS.items()):
            drawing.load_curve(axes, rows, column, LOADS, name, style, scheduler=scheduler)
        axes.set_ylim(bottom=0)
    drawing.save(figure, row, path)


@claim(
    "qoserve-fig5", cells=cells, measure=serve_violations, families=("qoserve-code",), devices=("a100-llama3-8b",),
    picture=picture,
)  # fmt: skip
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, scheduler: str, load: float) -> np.ndarray:
        return values(rows, column, scheduler=scheduler, load=load)

    def grown(scheduler: str) -> np.ndarray:
        return of("latency_p50_s", scheduler, HIGH) / of("latency_p50_s", scheduler, LOW)

    return [
        Check(f"median latency, load {HIGH:g} over {LOW:g}, without", grown(WITHOUT), Range(low=10)),
        Check(f"median latency, load {HIGH:g}, without over with", grown(WITHOUT) / grown(WITH), Range(low=3)),
        Check(f"violations, load {SLIGHT:g}, with", of("violations", WITH, SLIGHT), FEW),
        Check(f"violations, load {SLIGHT:g}, without", of("violations", WITHOUT, SLIGHT), Range(low=0.1)),
        Check(f"violations, load {HIGH:g}, without - with",
              of("violations", WITHOUT, HIGH) - of("violations", WITH, HIGH), Range(low=0.2)),
    ]  # fmt: skip

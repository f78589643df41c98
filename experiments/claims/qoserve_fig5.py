"""QoServe, Figure 5: what relegating a few requests does for the median one."""

import numpy as np
import pandas as pd

from experiments.claims.harness import Check, Range, claim, values
from experiments.claims.harness.drawing import by_load
from experiments.claims.harness.grids import grid, of_hours
from experiments.claims.harness.violations import serve_violations, slo_of

SCHEDULERS = {"eager relegation": "qoserve", "none": "qoserve:relegation=off"}
WITH, WITHOUT = SCHEDULERS.values()
LOADS = (0.8, 1.2, 1.4, 1.6)
LOW, SLIGHT, HIGH = 0.8, 1.4, 1.6
HOURS = 1.0  # of arrivals in full size
FEW = Range(high=0.1)


@claim(
    "qoserve-fig5",
    cells=grid(SCHEDULERS.values(), LOADS, of_hours(HOURS), slo_of),
    measure=serve_violations,
    families=("qoserve-code",),
    devices=("a100-llama3-8b",),
    picture=by_load(
        {"latency_p50_s": "median time to the last token, s", "violations": "violations, share"},
        SCHEDULERS,
        LOADS,
        limits=(0, None),
    ),
)
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

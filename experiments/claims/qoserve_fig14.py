"""QoServe, Figure 14: what alpha does, the weight of work against deadlines."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, claim, values
from experiments.claims.harness.drawing import by_load
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.violations import serve_violations, slo_of

ALPHAS = {"0": 0.0, "1": 0.001, "8": 0.008, "64": 0.064}  # by milliseconds a token
LOADS = (1.0, 1.2, 1.4)
HIGH = 1.4
HOURS = 1.5  # of arrivals in full size


def scheduler(alpha: float, relegation: str = "paper") -> str:
    return f"qoserve:alpha_s_per_token={alpha!r}" + ("" if relegation == "paper" else f",relegation={relegation}")


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for load in LOADS:
            requests = round(load * saturation_per_s(setting) * HOURS * 3600 * size.requests / 1000)
            for alpha in ALPHAS.values():
                yield Cell(*setting, scheduler(alpha), load, seed, requests, slo=slo_of(setting.device))
                if load == HIGH:
                    yield Cell(*setting, scheduler(alpha, "off"), load, seed, requests, slo=slo_of(setting.device))


@claim(
    "qoserve-fig14",
    cells=cells,
    measure=serve_violations,
    families=("qoserve-code",),
    devices=("a100-llama3-8b",),
    picture=by_load(
        {
            "latency_p50_s": "median time to the last token, s",
            "violations": "violations, share of all",
            "violations long": "violations, share of long",
        },
        {f"alpha {name} ms a token": scheduler(alpha) for name, alpha in ALPHAS.items()},
        LOADS,
        limits=(0, None),
    ),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def of(column: str, alpha: float, load: float, relegation: str = "paper") -> np.ndarray:
        return values(rows, column, scheduler=scheduler(alpha, relegation), load=load)

    checks = []
    for load, relegation, examines in (
        (HIGH, "paper", ""),
        (HIGH, "off", "without relegation"),
        (1.0, "paper", "load 1.0"),
    ):
        for (light, less), (heavy, more) in pairwise(ALPHAS.items()):
            step = f"alpha {heavy} - {light} ms"
            for column, name, expected in (
                ("latency_p50_s", "median latency, s", BELOW_0),
                ("violations long", "violations of long", ABOVE_0),
            ):
                difference = of(column, more, load, relegation) - of(column, less, load, relegation)
                checks.append(Check(f"{name}, {step}", difference, expected, examines))
    return checks

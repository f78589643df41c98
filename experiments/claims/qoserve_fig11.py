"""QoServe, Figure 11: which requests violate deadlines as load grows, by length and by class."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, claim, drawing, over_loads, values
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.violations import CLASSES, QOSERVE, sarathi, serve_violations, slo_of

DEVICE = "a100-llama3-8b"
SCHEDULERS = {
    "Sarathi-FCFS": sarathi("fcfs", DEVICE),
    "Sarathi-EDF": sarathi("edf", DEVICE),
    "Sarathi-SRPF": sarathi("srpf", DEVICE),
    "QoServe": QOSERVE,
}
FCFS, EDF, SRPF, QO = SCHEDULERS
HOURS = 2.0  # of arrivals in full size
LOW, LOADS, HIGHER = 0.5, (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4), 1.6  # the last for QoServe only
MIDDLE, HIGH = 1.1, 1.4
BROKEN = 0.01  # share of violations from which on a scheduler has broken down
NONE = Range(high=0.001)
LATER = Range(low=1.2)  # QoServe's breaking load over EDF's; the paper: 1.3
ALIKE = Range(-0.1, 0.1)  # long less short
ALIKE_CLASSES = Range(high=0.2)
IGNORES_LONG = Range(low=0.3)


def loads_of(name: str) -> tuple[float, ...]:
    return (*LOADS, HIGHER) if name == QO else LOADS


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for name, scheduler in SCHEDULERS.items():
            for load in loads_of(name):
                requests = round(load * saturation_per_s(setting) * HOURS * 3600 * size.requests / 1000)
                yield Cell(*setting, scheduler, load, seed, requests, slo=slo_of(setting.device))


def breaking_load(shares: np.ndarray, loads: tuple[float, ...]) -> np.ndarray:
    """float64[seeds]: load at which the share of violations passes `BROKEN`, between measured loads linearly; NaN where
    it does not. shares: float64[loads, seeds]."""
    found = np.full(shares.shape[1], np.nan)
    for seed, share in enumerate(shares.T):
        over = np.flatnonzero(share > BROKEN)
        if len(over) and over[0] > 0:
            i = over[0]
            part = (BROKEN - share[i - 1]) / (share[i] - share[i - 1])
            found[seed] = loads[i - 1] + part * (loads[i] - loads[i - 1])
    return found


@claim(
    "qoserve-fig11",
    cells=cells,
    measure=serve_violations,
    families=("qoserve-code",),
    devices=(DEVICE,),
    picture=drawing.by_load(
        {"violations": "all", "violations long": "long prompts", **{f"violations {name}": name for name in CLASSES}},
        SCHEDULERS,
        loads_of,
        "violations, share of requests",
        limits=(-0.02, 1.02),
    ),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def share(name: str, load: float, group: str = "") -> np.ndarray:
        return values(rows, f"violations{group}", scheduler=SCHEDULERS[name], load=load)

    def by_class(name: str, load: float) -> np.ndarray:
        return np.array([share(name, load, f" {kind}") for kind in CLASSES])

    breaks = {
        name: breaking_load(over_loads(rows, "violations", loads_of(name), scheduler=scheduler), loads_of(name))
        for name, scheduler in SCHEDULERS.items()
    }
    spread = {name: np.ptp(by_class(name, HIGH), axis=0) for name in (FCFS, EDF)}
    fcfs_middle, fcfs_high = by_class(FCFS, MIDDLE), by_class(FCFS, HIGH)
    checks = [
        Check(f"long, SRPF - EDF, load {LOW:g}", share(SRPF, LOW, " long") - share(EDF, LOW, " long"), ABOVE_0),
        *(Check(f"{name}, load {LOW:g}", share(name, LOW), NONE) for name in (FCFS, EDF, QO)),
        Check("breaking load, EDF - FCFS", breaks[EDF] - breaks[FCFS], ABOVE_0),
        Check("breaking load, QoServe over EDF", breaks[QO] / breaks[EDF], LATER),
        Check(f"FCFS, interactive - TTLT 600 s, load {MIDDLE:g}", fcfs_middle[0] - fcfs_middle[1], ABOVE_0),
        Check(f"FCFS, TTLT 600 s - 1800 s, load {HIGH:g}", fcfs_high[1] - fcfs_high[2], ABOVE_0),
        Check(f"EDF, classes apart, load {HIGH:g}", spread[EDF], ALIKE_CLASSES),
        Check(f"classes apart, EDF - FCFS, load {HIGH:g}", spread[EDF] - spread[FCFS], BELOW_0),
    ]
    for name, expected in {FCFS: ALIKE, EDF: ALIKE, SRPF: IGNORES_LONG}.items():
        difference = share(name, HIGH, " long") - share(name, HIGH, " short")
        checks.append(Check(f"{name}, long - short, load {HIGH:g}", difference, expected))
    for name in (FCFS, EDF, SRPF):
        checks.append(Check(f"QoServe - {name}, load {HIGH:g}", share(QO, HIGH) - share(name, HIGH), BELOW_0))
    return checks

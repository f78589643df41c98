"""ProServe, Figures 3 and 4: EDF against SJF as load grows, under a fixed token budget and a fixed batch size."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.measures import serve
from experiments.claims.harness.rows import mean_where, over_loads

LOADS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4)
LOW, HIGH = (0.1, 0.2, 0.3), (1.0, 1.2, 1.4)
LIMITS = {"token budget 512": "max_num_batched_tokens=512", "batch size 64": "batch_size=64"}
IN_CONTROL = 0.95  # SLO attainment up to which EDF has the load in hand
METRICS = {"attainment by the deadlines of the first and last token": "deadline_attainment", "TDG ratio": "tdg_ratio"}
BINDING = (
    "batch size 16"  # 64 requests are rarely in the queue at low load, and a limit that does not bind orders nothing
)
BINDING_LIMIT = "batch_size=16"
EARLY_TOKENS = "deadlines counted from an early first token"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for load in LOADS:
        for seed in size.seeds:
            for name in ("edf", "sjf"):
                for limit in (*LIMITS.values(), BINDING_LIMIT):
                    yield Cell(*setting, f"{name}:{limit}", load, seed, size.requests_of(setting))
                limit = LIMITS["token budget 512"]
                yield Cell(*setting, f"{name}:{limit}", load, seed, size.requests_of(setting), buffered=False)


def crossing_load(edf: np.ndarray, sjf: np.ndarray) -> np.ndarray:
    """float64[seeds]: the load, interpolated, past which SJF is ahead for good; NaN where EDF is never ahead before."""
    ahead = edf - sjf
    crossings = np.full(ahead.shape[1], np.nan)
    for seed, of_seed in enumerate(ahead.T):
        before = [i for i in range(len(LOADS) - 1) if of_seed[i] > 0 and of_seed[i + 1] <= 0]
        if before and of_seed[-1] < 0:
            i = before[-1]
            crossings[seed] = LOADS[i] + (LOADS[i + 1] - LOADS[i]) * of_seed[i] / (of_seed[i] - of_seed[i + 1])
    return crossings


def steepest_fall(attained: np.ndarray) -> np.ndarray:
    """float64[seeds]: the largest loss per unit of load between neighbouring loads."""
    return np.max(-np.diff(attained, axis=0) / np.diff(LOADS)[:, None], axis=0)


CURVES = {f"{name.upper()}, {limit}": f"{name}:{at}" for limit, at in LIMITS.items() for name in ("edf", "sjf")}
PICTURE = drawing.by_family({"slo_attainment": "SLO attainment, share of requests"}, CURVES, LOADS, buffered=True)


@claim("proserve-fig3", cells=cells, measure=serve, picture=PICTURE)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = []
    for limit, setting in LIMITS.items():
        edf, sjf = both(rows, "slo_attainment", setting)
        steeper = steepest_fall(edf) - steepest_fall(sjf)
        in_control = mean_where(edf - sjf, edf.mean(axis=1) >= IN_CONTROL)
        checks += [
            *order_checks(edf, sjf, limit),
            Check(f"steepest fall, EDF - SJF per unit of load, {limit}", steeper, ABOVE_0),
            Check(f"EDF - SJF, {limit}", in_control, ABOVE_0, "another load axis: all loads at which EDF attains 95 %"),
        ]
    for examines, column in METRICS.items():
        for limit, setting in LIMITS.items():
            checks += order_checks(*both(rows, column, setting), limit, examines)
    limit = "token budget 512"
    early = both(rows, "slo_attainment", LIMITS[limit], buffered=False)
    binding = both(rows, "slo_attainment", BINDING_LIMIT)
    within = mean_where(binding[0] - binding[1], binding[0].mean(axis=1) >= IN_CONTROL)
    return [
        *checks,
        *order_checks(*early, limit, EARLY_TOKENS),
        *order_checks(*binding, BINDING, "a smaller batch, that binds"),
        Check(f"EDF - SJF at all loads at which EDF attains 95 %, {BINDING}", within, ABOVE_0,
              "a smaller batch, that binds"),
    ]  # fmt: skip


def both(rows: pd.DataFrame, column: str, limit: str, buffered: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """float64[loads, seeds] of EDF and of SJF."""
    edf, sjf = (
        over_loads(rows, column, LOADS, scheduler=f"{name}:{limit}", buffered=buffered) for name in ("edf", "sjf")
    )
    return edf, sjf


def order_checks(edf: np.ndarray, sjf: np.ndarray, limit: str, examines: str = "") -> list[Check]:
    """Which is ahead at low load and at high load, and where they cross."""
    low, high = ([LOADS.index(load) for load in loads] for loads in (LOW, HIGH))
    return [
        Check(f"EDF - SJF at low load, {limit}", (edf - sjf)[low].mean(axis=0), ABOVE_0, examines),
        Check(f"EDF - SJF at high load, {limit}", (edf - sjf)[high].mean(axis=0), BELOW_0, examines),
        Check(f"crossing load, {limit}", crossing_load(edf, sjf), Range(LOADS[0], LOADS[-1]), examines),
    ]

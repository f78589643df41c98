"""Semantic scheduling, Figure 2a: how errors about urgency move waiting times."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim
from experiments.claims.harness.error_curves import picture_of_errors
from experiments.claims.harness.settings import Setting, Size, rules_of
from experiments.claims.harness.waiting import BUCKETS, DEVICES, LEVELS, cell_of_waves, serve_waiting, waited, waves

ERRORS = (0.1, 0.3, 0.5, 0.7, 0.9)
N, GAP_S, LONG_GAP_S = 5, 0.1, 1.0
# Slower by these factors in the paper; each stands for itself over or times 1.75. Overall .13 -> .12.
LEVEL_0, LEVEL_1 = Range(2.0, 6.1), Range(4.2, 12.8)
SAME = Range(0.85, 1.15)
FASTER = Range(high=1.0)
PUBLIC_CODE = ",clip=public-code"
# Host memory of an engine whose own is short, moved at the paper's speed (s a token), and slots enough to fill it.
SMALL_DEVICE, MANY_SLOTS = "a5000-qwen1.5-7b", "semantic:slots=32"
HOST = "blocks=100000,load_s_per_token=0.0003,save_s_per_token=0.0003"
ACCOUNTINGS = ("decode", "prefill", "as-printed")
HOST_MEMORY = "KV saved to host memory, 32 slots, no errors"


def predictor(error: float, more: str = "") -> str:
    return f"urgency_error={error},{BUCKETS}{more}"


def accounted(accounting: str) -> str:
    return f"{MANY_SLOTS},accounting={accounting}"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for error in ERRORS:
            yield cell_of_waves(setting, size, "semantic", seed, N, GAP_S, predictor=predictor(error))
        for error in (ERRORS[0], ERRORS[-1]):
            for gap_s, more in ((GAP_S, PUBLIC_CODE), (LONG_GAP_S, "")):
                yield cell_of_waves(setting, size, "semantic", seed, N, gap_s, predictor=predictor(error, more))
        if rules_of(setting.device) == SMALL_DEVICE:
            yield cell_of_waves(setting, size, MANY_SLOTS, seed, N, GAP_S, predictor=BUCKETS)
            for accounting in ACCOUNTINGS:
                yield cell_of_waves(
                    setting, size, accounted(accounting), seed, N, GAP_S, predictor=BUCKETS, host=HOST
                )  # fmt: skip


class Look(NamedTuple):
    """A way of looking at the claim: what was run, and which column tells."""

    gap_s: float = GAP_S
    more: str = ""
    column: str = "waiting_s"


LOOKS = {
    "levels clipped to 1 to 5, as the public code does": Look(more=PUBLIC_CODE),
    "a gap of 1 s": Look(LONG_GAP_S),
    "the mean of each request's own waiting time per token": Look(column="mean_waiting_s"),
}


def slower(rows: pd.DataFrame, level: int | None, look: Look) -> np.ndarray:
    """float64[seeds]: waiting time with the largest error over that with the smallest."""
    small, large = (
        waited(rows, level, look.column, predictor=predictor(error, look.more), arrivals=waves(N, look.gap_s))
        for error in (ERRORS[0], ERRORS[-1])
    )
    return large / small


def factor_checks(rows: pd.DataFrame, look: Look, examines: str = "") -> list[Check]:
    low = np.mean([slower(rows, level, look) for level in LEVELS[2:]], axis=0)
    return [
        Check("waiting, error 0.9 over 0.1, level 0", slower(rows, 0, look), LEVEL_0, examines),
        Check("waiting, error 0.9 over 0.1, level 1", slower(rows, 1, look), LEVEL_1, examines),
        Check("waiting, error 0.9 over 0.1, mean of levels 2 to 4", low, FASTER, examines),
        Check("waiting, error 0.9 over 0.1, overall", slower(rows, None, look), SAME, examines),
    ]


def memory_checks(rows: pd.DataFrame) -> list[Check]:
    """What saving KV does where memory is short, for each way of accounting, against doing without."""
    if rules_of(rows["device"].iloc[0]) != SMALL_DEVICE:
        return []
    without = waited(rows, scheduler=MANY_SLOTS)
    saving = {accounting: waited(rows, scheduler=accounted(accounting)) for accounting in ACCOUNTINGS}
    return [
        Check(f"waiting, overall, accounting={accounting} over none", saved / without, Range(high=1.0), HOST_MEMORY)
        for accounting, saved in saving.items()
    ]


@claim(
    "semantic-fig2a",
    cells=cells,
    measure=functools.partial(serve_waiting, requests_at_least=2500),
    picture=picture_of_errors("urgency", ERRORS, predictor, arrivals=waves(N, GAP_S)),
    families=("semantic",),
    devices=DEVICES,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    of_level_0 = [waited(rows, 0, predictor=predictor(error), arrivals=waves(N, GAP_S)) for error in ERRORS]
    smallest_step = np.diff(of_level_0, axis=0).min(axis=0)
    return [
        *factor_checks(rows, Look()),
        Check("level 0, smallest step of its waiting, s a token", smallest_step, ABOVE_0),
        *(check for examines, look in LOOKS.items() for check in factor_checks(rows, look, examines)),
        *memory_checks(rows),
    ]

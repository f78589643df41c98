"""Semantic scheduling, Figure 2b: how errors about output lengths move waiting times."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim
from experiments.claims.harness.error_curves import picture_of_errors
from experiments.claims.harness.waiting import BUCKETS, DEVICES, LEVELS, cell_of_waves, serve_waiting, waited, waves

ERRORS = (0.1, 0.3, 0.5, 0.7, 0.9)
N, GAP_S, LONG_GAP_S = 5, 0.1, 1.0
# The paper's factors: 1 for level 0, 1.33, 1.38, 1.17 and 1.10 for the others.
UNMOVED, A_LITTLE_SLOWER = Range(0.9, 1.1), Range(1.0, 1.5)


class Look(NamedTuple):
    """A way of looking at the claim: what was run, and which column tells."""

    scheduler: str = "semantic"
    gap_s: float = GAP_S
    column: str = "waiting_s"


LOOKS = {
    "prefills never wait for a decode": Look("semantic:batching=prefill-first"),
    "remaining time as it is now, as the public code has it": Look("semantic:remaining_time=current"),
    "a gap of 1 s": Look(gap_s=LONG_GAP_S),
    "the mean of each request's own waiting time per token": Look(column="mean_waiting_s"),
}


def predictor(error: float) -> str:
    return f"length_error={error},{BUCKETS}"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for error in ERRORS:
            yield cell_of_waves(setting, size, "semantic", seed, N, GAP_S, predictor=predictor(error))
        for error in (ERRORS[0], ERRORS[-1]):
            for look in LOOKS.values():
                yield cell_of_waves(setting, size, look.scheduler, seed, N, look.gap_s, predictor=predictor(error))


def slower(rows: pd.DataFrame, level: int, look: Look) -> np.ndarray:
    """float64[seeds]: waiting time with the largest error over that with the smallest."""
    where = {"scheduler": look.scheduler, "arrivals": waves(N, look.gap_s)}
    small, large = (
        waited(rows, level, look.column, predictor=predictor(error), **where) for error in (ERRORS[0], ERRORS[-1])
    )
    return large / small


def factor_checks(rows: pd.DataFrame, look: Look, examines: str = "") -> list[Check]:
    return [
        Check(
            f"waiting, error 0.9 over 0.1, level {level}",
            slower(rows, level, look),
            UNMOVED if level == 0 else A_LITTLE_SLOWER,
            examines,
        )
        for level in LEVELS
    ]


@claim(
    "semantic-fig2b",
    cells=cells,
    measure=functools.partial(serve_waiting, requests_at_least=2500),
    picture=picture_of_errors("lengths", ERRORS, predictor, scheduler="semantic", arrivals=waves(N, GAP_S)),
    families=("semantic",),
    devices=DEVICES,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    looks = LOOKS.items()
    return [
        *factor_checks(rows, Look()),
        *(check for examines, look in looks for check in factor_checks(rows, look, examines)),
    ]

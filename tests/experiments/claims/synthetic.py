"""A claim that needs no simulator, and sizes small enough for tests."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import ABOVE_0, Check, Range
from experiments.claims.harness.prose import Prose
from experiments.claims.harness.registry import Claim
from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import Setting, Size

DEVICE = "a100-llama3-8b"
TINY = Size("tiny", ("azure-conv",), (DEVICE,), (1, 2, 3), 40)
LOAD = 1.0


def check(values: list[float], expected: Range = ABOVE_0, examines: str = "") -> Check:
    return Check("difference", np.array(values), expected, examines)


def cells(setting: Setting, size: Size) -> list[Cell]:
    return [Cell(*setting, scheduler, LOAD, seed, size.requests) for seed in size.seeds for scheduler in ("edf", "sjf")]


class Measured:
    """A measure that counts its calls and stops the study, as Ctrl-C does, after some of them."""

    def __init__(self, stop_after: int | None = None):
        self.calls = 0
        self.stop_after = stop_after

    def __call__(self, cell: Cell) -> dict[str, float]:
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        return {"score": cell.seed + (0.5 if cell.scheduler == "edf" else 0.0)}


def judge(rows: pd.DataFrame) -> list[Check]:
    edf, sjf = (values(rows, "score", scheduler=scheduler) for scheduler in ("edf", "sjf"))
    return [Check("EDF - SJF", edf - sjf, ABOVE_0), Check("SJF - EDF", sjf - edf, ABOVE_0, "the other way")]


def measure(cell: Cell) -> dict[str, float]:
    return Measured()(cell)


def synthetic_claim(measure=measure) -> Claim:
    prose = Prose("Figure 0", "EDF is better.", "EDF less SJF is above 0.", "An interval below 0.")
    return Claim("synthetic", prose, cells, measure, judge)

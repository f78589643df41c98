"""Semantic scheduling, Table 1 as the public scripts run it: more concurrent requests with each latency."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim
from experiments.claims.harness.waiting import DEVICES, cell_of_waves, serve_waiting
from experiments.claims.semantic_table1 import (
    AT_ONCE,
    FAST_S,
    FULL,
    LATENCIES_S,
    SHORT_GAP_S,
    TIE,
    draw,
    overall,
    predictor,
)

CONCURRENT = {0.001: 4, 0.01: 16, 0.1: 32, 1.0: 64}  # by latency; the table's caption says 5 for all
PROCESSINGS = {"full batches": FULL, "immediate": AT_ONCE}
# Ratios to 0.01 s in print: full batches 0.34, 2.0 and 4.0, immediate 0.066, 2.0 and 4.2.
TWICE, FOUR_TIMES = Range(1.6, 2.5), Range(3.2, 5.2)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for latency_s, n in CONCURRENT.items():
            for processing in PROCESSINGS.values():
                for told_s in dict.fromkeys((latency_s, FAST_S)):
                    yield cell_of_waves(
                        setting, size, "semantic", seed, n, SHORT_GAP_S, predictor=predictor(processing, told_s)
                    )


def waiting(rows: pd.DataFrame, processing: str, latency_s: float, told_s: float | None = None) -> np.ndarray:
    """float64[seeds]: s a token at the concurrency of a latency. told_s: the latency there, if another."""
    return overall(rows, processing, told_s or latency_s, SHORT_GAP_S, CONCURRENT[latency_s])


def picture(rows: pd.DataFrame, path: Path) -> None:
    draw(
        path, "4, 16, 32 and 64 concurrent", "waiting time, s per token", PROCESSINGS, functools.partial(waiting, rows)
    )


@claim(
    "semantic-table1-scripts",
    cells=cells,
    measure=functools.partial(serve_waiting, requests_at_least=2500),
    picture=picture,
    families=("semantic",),
    devices=DEVICES[:1],
)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = [
        Check(
            "full batches over immediate, 0.001 s", waiting(rows, FULL, FAST_S) / waiting(rows, AT_ONCE, FAST_S),
            Range(low=2.0),
        )
    ]  # fmt: skip
    for latency_s in LATENCIES_S[1:]:
        ratio = waiting(rows, AT_ONCE, latency_s) / waiting(rows, FULL, latency_s)
        checks.append(Check(f"immediate over full batches, {latency_s:g} s", ratio, TIE))
    for name, processing in PROCESSINGS.items():
        base = waiting(rows, processing, 0.01)
        checks += [
            Check(f"{name}, 0.1 s over 0.01 s", waiting(rows, processing, 0.1) / base, TWICE),
            Check(f"{name}, 1 s over 0.01 s", waiting(rows, processing, 1.0) / base, FOUR_TIMES),
        ]
    for name, processing in PROCESSINGS.items():
        fast = waiting(rows, processing, 1.0, FAST_S) / waiting(rows, processing, 1.0)
        examines = "64 concurrent requests, whatever the latency"
        checks.append(Check(f"{name}, latency 0.001 s over 1 s", fast, Range(0.9, 1.1), examines))
    return checks

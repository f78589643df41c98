"""Semantic scheduling, Table 1 as its caption has it: what predictors cost, processed at once or in full batches."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.waiting import BUCKETS, DEVICES, cell_of_waves, serve_waiting, waited, waves

LATENCIES_S = (0.001, 0.01, 0.1, 1.0)
FAST_S, SLOW_S = LATENCIES_S[0], LATENCIES_S[-1]
N, GAP_S, SHORT_GAP_S = 5, 1.0, 0.1
FULL = "processing=full-batch,batch_size=64"
EACH = "processing=immediate,batch_size=1"
AT_ONCE = "processing=immediate,batch_size=64"
FAR_AHEAD, TIE, BEHIND = Range(low=2.0), Range(0.95, 1.05), Range(1.0, 1.1)
GROWS = Range(low=2.0)


def predictor(processing: str, latency_s: float) -> str:
    return f"{BUCKETS},{processing},latency_s={latency_s}"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    def cell(seed: int, n: int, gap_s: float, processing: str, latency_s: float) -> Cell:
        asked = predictor(processing, latency_s)
        return cell_of_waves(setting, size, "semantic", seed, n, gap_s, predictor=asked)

    for seed in size.seeds:
        for latency_s in LATENCIES_S:
            for gap_s in (GAP_S, SHORT_GAP_S):
                for processing in (FULL, EACH, AT_ONCE):
                    yield cell(seed, N, gap_s, processing, latency_s)


def overall(rows: pd.DataFrame, processing: str, latency_s: float, gap_s: float = GAP_S, n: int = N) -> np.ndarray:
    """float64[seeds]: waiting time of all requests, s a token."""
    return waited(rows, predictor=predictor(processing, latency_s), arrivals=waves(n, gap_s))


def table_checks(rows: pd.DataFrame, immediate: str, gap_s: float, examines: str = "") -> list[Check]:
    """Immediate over full batches, seed by seed, and how both grow."""
    at = {
        latency_s: overall(rows, immediate, latency_s, gap_s) / overall(rows, FULL, latency_s, gap_s)
        for latency_s in LATENCIES_S
    }
    grown = {
        name: overall(rows, processing, SLOW_S, gap_s) / overall(rows, processing, FAST_S, gap_s)
        for name, processing in (("full batches", FULL), ("immediate", immediate))
    }
    return [
        Check("overall, full batches over immediate, 0.001 s", 1 / at[0.001], FAR_AHEAD, examines),
        Check("overall, immediate over full batches, 0.01 s", at[0.01], TIE, examines),
        Check("overall, immediate over full batches, 0.1 s", at[0.1], BEHIND, examines),
        Check("overall, immediate over full batches, 1 s", at[1.0], BEHIND, examines),
        *(Check(f"overall, {name}, 1 s over 0.001 s", grown[name], GROWS, examines) for name in grown),
    ]


def picture(rows: pd.DataFrame, path: Path) -> None:
    shown = {"full batches of 64": FULL, "immediate, up to 64": AT_ONCE, "immediate, one by one": EACH}
    draw(path, f"5 concurrent, gap {GAP_S:g} s", "waiting time, s a token", shown, functools.partial(overall, rows))


def draw(path: Path, title: str, y: str, shown: dict[str, str], waiting: Callable[[str, float], np.ndarray]) -> None:
    """Waiting times against the latency of a call. shown: processings by label; waiting: (processing, latency)."""
    figure, row = drawing.panels([title], "latency of a call, s", y)
    for style, (name, processing) in enumerate(shown.items()):
        by_seed = [waiting(processing, latency_s) for latency_s in LATENCIES_S]
        drawing.curve(row[0], LATENCIES_S, by_seed, name, style)
    row[0].set_xscale("log")
    row[0].set_yscale("log")
    drawing.save(figure, row, path)


@claim(
    "semantic-table1",
    cells=cells,
    measure=functools.partial(serve_waiting, requests_at_least=2500),
    picture=picture,
    families=("semantic",),
    devices=DEVICES[:1],
)
def judge(rows: pd.DataFrame) -> list[Check]:
    return [
        *table_checks(rows, EACH, GAP_S),
        *table_checks(rows, AT_ONCE, GAP_S, "immediate calls take up to 64 requests, as in the public code"),
        *table_checks(rows, EACH, SHORT_GAP_S, "a gap of 0.1 s"),
    ]

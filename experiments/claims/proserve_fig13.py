"""ProServe, Figure 13: TDG ratio and SLO attainment of high and low priority."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, Setting, Size, claim, drawing, values
from experiments.claims.harness.measures import serve

LOAD = 1.0
SLIDE, FCFS, PRIORITY = "slide-batching", "sarathi-fcfs", "sarathi-priority"
A_LITTLE = Range(0.0, 0.1)  # high priority above low
HIGH = Range(low=0.8)
STARVED = Range(high=0.5)  # low priority of Sarathi-Priority over that of SlideBatching
MEDIUM_LOAD = 0.7
METRICS = ("TDG ratio", "SLO attainment")
COLUMN = {
    "TDG ratio": "tdg_ratio",
    "SLO attainment": "slo_attainment",
    "attainment by deadlines": "deadline_attainment",
}
VARIANTS = {
    "deadlines counted from an early first token": (SLIDE, False),
    "SlideBatching alone counts deadlines from an early first token": (f"{SLIDE}:deadlines=early-first-token", True),
    "variant=xllm": (f"{SLIDE}:variant=xllm", True),
    "variant=xllm, deadlines counted from an early first token": (f"{SLIDE}:variant=xllm", False),
    "hopeless=exclude": (f"{SLIDE}:hopeless=exclude", True),
}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    for seed in size.seeds:
        for load in (LOAD, MEDIUM_LOAD):
            for scheduler in (SLIDE, FCFS, PRIORITY):
                yield Cell(*setting, scheduler, load, seed, size.requests_of(setting))
        for scheduler, buffered in VARIANTS.values():
            yield Cell(*setting, scheduler, LOAD, seed, size.requests_of(setting), buffered=buffered)


def priorities(
    rows: pd.DataFrame, metric: str, scheduler: str, load: float = LOAD, buffered: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """float64[seeds] twice: a metric of high and of low priority."""
    at = {"scheduler": scheduler, "load": load, "buffered": buffered}
    high, low = (values(rows, f"{COLUMN[metric]}_{name}_priority", **at) for name in ("high", "low"))
    return high, low


def all_checks(rows: pd.DataFrame, metric: str, load: float, examines: str) -> list[Check]:
    high, low = priorities(rows, metric, SLIDE, load)
    fcfs_high, fcfs_low = priorities(rows, metric, FCFS, load)
    _, starved = priorities(rows, metric, PRIORITY, load)
    return [
        Check(f"{metric}, high - low priority", high - low, A_LITTLE, examines),
        Check(f"{metric}, high priority", high, HIGH, examines),
        Check(f"{metric}, low priority", low, HIGH, examines),
        Check(f"{metric}, high priority less Sarathi-FCFS's", high - fcfs_high, ABOVE_0, examines),
        Check(f"{metric}, low priority less Sarathi-FCFS's", low - fcfs_low, ABOVE_0, examines),
        Check(f"{metric}, low priority of Sarathi-Priority over SlideBatching's", ratio(starved, low), STARVED,
              examines),
    ]  # fmt: skip


def ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One over the other; where the other is 0, NaN: no one can be starved beside it."""
    return np.divide(one, other, out=np.full(len(one), np.nan), where=other > 0)


def variant_checks(rows: pd.DataFrame) -> list[Check]:
    """Attainment and gain of SlideBatching as it might have been run instead."""
    checks = []
    for examines, (scheduler, buffered) in VARIANTS.items():
        for metric in METRICS:
            high, low = priorities(rows, metric, scheduler, buffered=buffered)
            checks += [
                Check(f"{metric}, high priority", high, HIGH, examines),
                Check(f"{metric}, low priority", low, HIGH, examines),
            ]
    return checks


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    bars = {
        "Sarathi-FCFS": (FCFS, True),
        "Sarathi-Priority": (PRIORITY, True),
        "SlideBatching": (SLIDE, True),
        "SlideBatching, early first\ntokens move deadlines": (SLIDE, False),
    }
    figure, row = drawing.panels(list(COLUMN), "", "share", size=(3.1, 3.0))
    for axes, metric in zip(row, COLUMN, strict=True):
        for place, (name, look) in enumerate({"high": "#333333", "low": "#bbbbbb"}.items()):
            shares = [priorities(here, metric, of, buffered=buffered)[place] for of, buffered in bars.values()]
            drawing.bars(axes, shares, f"{name} priority", at=0.38 * place, width=0.36, color=look, edgecolor="black")
        axes.set_xticks(np.arange(len(bars)) + 0.19, list(bars), rotation=35, ha="right", fontsize=7)
        axes.set_ylim(0, 1.02)
    drawing.save(figure, row, path)


@claim("proserve-fig13", cells=cells, measure=serve, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    checks = [check for metric in METRICS for check in all_checks(rows, metric, LOAD, "")]
    checks += all_checks(rows, "attainment by deadlines", LOAD, "the first and last token's deadlines, not mean TPOT")
    checks += variant_checks(rows)
    for metric in METRICS:
        checks += all_checks(rows, metric, MEDIUM_LOAD, f"load {MEDIUM_LOAD:g}")
    return checks

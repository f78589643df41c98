"""Semantic scheduling, Figures 2c and 2d: the most urgent requests in spikes, against HPJF, SJF and FCFS."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, Setting, Size, claim, drawing
from experiments.claims.harness.waiting import BUCKETS, DEVICES, cell_of_waves, serve_waiting, waited, waves

SIZES = (5, 20, 50, 100)  # of the largest wave
SPIKE = SIZES[-1]
GAPS_S = (0.1, 1.0)
WAVES_OF_RUN = 40
SEMANTIC = "semantic"
BASELINES = {"HPJF": "hpjf:level=urgency", "SJF": "slots-sjf", "FCFS": "slots-fcfs"}
# At 100 concurrent requests and a gap of 0.1 s; each stands for itself over or times 1.5.
FASTER = {"HPJF": Range(1.13, 2.55), "SJF": Range(4.1, 9.2), "FCFS": Range(5.8, 13.1)}
UP_TO = Range(6.1, 13.7)  # the largest at a gap of 1 s, 9.1
PREFILL_FIRST = "rivals whose prefills never wait for a decode"
ALL_PREFILL_FIRST = "semantic scheduling too"


def prefill_first(scheduler: str) -> str:
    return f"{scheduler}{',' if ':' in scheduler else ':'}batching=prefill-first"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    def cell(scheduler: str, seed: int, n: int, gap_s: float) -> Cell:
        return cell_of_waves(setting, size, scheduler, seed, n, gap_s, WAVES_OF_RUN, predictor=BUCKETS)

    for seed in size.seeds:
        for gap_s in GAPS_S:
            for scheduler in (SEMANTIC, *BASELINES.values()):
                for n in SIZES:
                    yield cell(scheduler, seed, n, gap_s)
                yield cell(prefill_first(scheduler), seed, SPIKE, gap_s)


def level_0(rows: pd.DataFrame, scheduler: str, n: int = SPIKE, gap_s: float = GAPS_S[0]) -> np.ndarray:
    """float64[seeds]: waiting time of the most urgent requests, s a token."""
    return waited(rows, 0, scheduler=scheduler, arrivals=waves(n, gap_s))


def spike_checks(rows: pd.DataFrame, baselines: dict[str, str], semantic: str, examines: str = "") -> list[Check]:
    """Of the largest waves at the short gap."""
    waits = {name: level_0(rows, baseline) / level_0(rows, semantic) for name, baseline in baselines.items()}
    return [
        *(Check(f"level 0, {name} over semantic, gap 0.1 s", waits[name], FASTER[name], examines) for name in waits),
        Check("level 0, (SJF - HPJF) over semantic, gap 0.1 s", waits["SJF"] - waits["HPJF"], ABOVE_0, examines),
        Check("level 0, (FCFS - SJF) over semantic, gap 0.1 s", waits["FCFS"] - waits["SJF"], ABOVE_0, examines),
    ]


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows["device"].iloc[0]
    here = rows[rows["device"] == first]
    figure, row = drawing.panels(
        [f"gap {gap_s:g} s" for gap_s in GAPS_S],
        "largest wave, requests",
        "waiting time of level 0,\ns per output token",
    )
    for axes, gap_s in zip(row, GAPS_S, strict=True):
        for style, (name, scheduler) in enumerate({"semantic": SEMANTIC, **BASELINES}.items()):
            drawing.curve(axes, SIZES, [level_0(here, scheduler, n, gap_s) for n in SIZES], name, style)
        axes.set_yscale("log")
    drawing.save(figure, row, path)


@claim(
    "semantic-fig2cd",
    cells=cells,
    measure=functools.partial(serve_waiting, requests_at_least=2000),
    picture=picture,
    families=("semantic",),
    devices=DEVICES[:1],
)
def judge(rows: pd.DataFrame) -> list[Check]:
    at_1_s = {
        name: [level_0(rows, baseline, n, GAPS_S[1]) / level_0(rows, SEMANTIC, n, GAPS_S[1]) for n in SIZES]
        for name, baseline in BASELINES.items()
    }
    unaware = {name: prefill_first(baseline) for name, baseline in BASELINES.items()}
    own = level_0(rows, prefill_first(SEMANTIC)) / level_0(rows, SEMANTIC)
    return [
        *spike_checks(rows, BASELINES, SEMANTIC),
        *(
            Check(f"level 0, {name} over semantic - 1, gap 1 s", factors[-1] - 1, ABOVE_0)
            for name, factors in at_1_s.items()
        ),
        Check("level 0, largest factor at a gap of 1 s", np.max(list(at_1_s.values()), axis=(0, 1)), UP_TO),
        *spike_checks(rows, unaware, SEMANTIC, PREFILL_FIRST),
        *spike_checks(rows, unaware, prefill_first(SEMANTIC), f"{PREFILL_FIRST}, {ALL_PREFILL_FIRST}"),
        Check(
            "level 0, semantic without stage awareness over with it, gap 0.1 s", own, Range(low=1.0), "stage awareness"
        ),
    ]

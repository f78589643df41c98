"""The tables of docs/results/learned.md from an evaluation's runs, and whether what was asked of a scheduler holds.

    servegym evaluate --requests 1000 --out results/learned --scheduler NAME ...
    python -m experiments.held_out results/learned expected-gain --against TUNED

Asked, before anything here was measured: over the tuned setting at least 5 % of TDG at overload and 3 % at high load,
nowhere 0.2 % below it, SLO attainment nowhere a point below, and no longer p99 of TTFT.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from servegym.evaluation.intervals import Interval
from servegym.evaluation.markdown import table
from servegym.evaluation.panels.statistics import bootstrap, difference
from servegym.evaluation.panels.tables import ATTAINMENT, RUNS_FILE, TDG, score_array
from servegym.scenarios.values import load_title

TTFT = "ttft_p99_s"
COLUMNS = {
    TDG: ("TDG ratio", ".4f"),
    ATTAINMENT: ("SLO attainment", ".3f"),
    f"{ATTAINMENT}_high_priority": ("SLO attainment, high priority", ".3f"),
    f"{ATTAINMENT}_low_priority": ("SLO attainment, low priority", ".3f"),
    "starved": ("starved", ".3f"),
    TTFT: ("TTFT p99, s", ".0f"),
}
WITH_DIFFERENCE = (TDG, ATTAINMENT)
TUNED = "tuned"
MET, MISSED, OPEN = "met", "**missed**", "open"


class Bar(NamedTuple):
    """What is asked at some loads. least: of the figure; relative: as a share of the other's mean."""

    figure: str
    loads: tuple[float, ...]
    least: float
    relative: bool = False

    @property
    def words(self) -> str:
        name, _ = COLUMNS[self.figure]
        return f"{name} {self.least:+.1%} or more" if self.relative else f"{name} {self.least:+g} or more"


LIGHT, MEDIUM, HIGH, OVERLOAD = 0.3, 0.7, 1.0, 1.4
ALL_LOADS = (LIGHT, MEDIUM, HIGH, OVERLOAD)
BARS = (
    Bar(TDG, (OVERLOAD,), 0.05, relative=True),
    Bar(TDG, (HIGH,), 0.03, relative=True),
    Bar(TDG, (LIGHT, MEDIUM), -0.002, relative=True),
    Bar(ATTAINMENT, ALL_LOADS, -0.01),
)


def relative(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """`difference` as a share of the others' mean; float64[cells, seeds], resampled on the first axes."""
    return difference(scores, others) / others.mean(axis=(-2, -1))


def less(runs: pd.DataFrame, policy: str, other: str, figure: str, share: bool = False) -> Interval:
    """By how much a policy's mean differs from another's on the same requests, with a 95 % interval."""
    arrays = (score_array(runs, one, figure) for one in (policy, other))
    return bootstrap(relative if share else difference, *arrays)


def judged(interval: Interval, least: float) -> str:
    """Whether the whole interval is at or above what is asked, or below it."""
    return MET if interval.low >= least else MISSED if interval.high < least else OPEN


def figures_table(runs: pd.DataFrame, baseline: str, tuned: str) -> str:
    """Means by load of each figure and policy; of TDG and attainment the difference to the baseline too."""
    loads = list(runs["load"].unique())
    groups = [*((load_title(load), runs[runs["load"] == load]) for load in loads), ("all", runs)]
    lines = []
    for figure, (name, style) in COLUMNS.items():
        for number, policy in enumerate(runs["policy"].unique()):
            title = TUNED if policy == tuned else f"`{policy}`"
            cells = [format(of[of["policy"] == policy][figure].mean(), style) for _, of in groups]
            lines.append([f"{name}: {title}" if number == 0 else title, *cells])
            if figure in WITH_DIFFERENCE and policy != baseline:
                differences = (less(of, policy, baseline, figure) for _, of in groups)
                lines.append(["its difference", *(one.text(f"+{style}") for one in differences)])
    return table(["", *(title for title, _ in groups)], lines)


def bars(runs: pd.DataFrame, policy: str, other: str) -> Iterator[tuple[str, str, str, str]]:
    """(what is asked, at which load, measured, whether it holds) of each bar, at the loads that were run."""
    loads = set(runs["load"])
    for bar in BARS:
        for load in (one for one in bar.loads if one in loads):
            interval = less(runs[runs["load"] == load], policy, other, bar.figure, bar.relative)
            measured = interval.in_words("+.1%" if bar.relative else "+.3f")
            yield bar.words, load_title(load), measured, judged(interval, bar.least)
    for load in (one for one in ALL_LOADS if one in loads):
        interval = less(runs[runs["load"] == load], other, policy, TTFT)  # what it waits less
        longer = Interval(-interval.mean, -interval.high, -interval.low)
        yield "TTFT p99 not longer, s", load_title(load), longer.in_words("+.0f"), judged(interval, 0.0)


def worse_cells(runs: pd.DataFrame, policy: str, other: str, figure: str, by: float) -> list[str]:
    """The cells in which a policy's mean over seeds is lower by more than so much, the lowest first."""
    of = runs[runs["policy"].isin((policy, other))]
    means = of.pivot_table(index=["trace", "device", "load"], columns="policy", values=figure)
    behind = (means[policy] - means[other]).sort_values()
    return [f"{' '.join(map(str, cell))}: {value:+.4f}" for cell, value in behind[behind < -by].items()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("evaluation", type=Path, help="folder of `servegym evaluate`")
    parser.add_argument("policy", help="whose figures are asked about; the baseline of the table")
    parser.add_argument("--against", required=True, help="the label of the tuned setting")
    asked = parser.parse_args(arguments)
    runs = pd.read_parquet(asked.evaluation / RUNS_FILE)
    if missing := {asked.policy, asked.against} - set(runs["policy"]):
        parser.error(f"{missing.pop()} is not among {', '.join(runs['policy'].unique())}")
    print(f"{TUNED}: `{asked.against}`\n")
    print(figures_table(runs, asked.policy, asked.against))
    print(table(["asked", "load", "measured", ""], bars(runs, asked.policy, asked.against)))
    for figure, by in ((TDG, 0.002), (ATTAINMENT, 0.01)):
        found = worse_cells(runs, asked.policy, asked.against, figure, by)
        print(f"{COLUMNS[figure][0]} lower by more than {by:g} in {len(found)} cells: {'; '.join(found) or 'none'}\n")


if __name__ == "__main__":
    main()

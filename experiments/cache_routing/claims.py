"""Tables of setups: their figures, and differences paired by seed, what was expected of them, and whether it holds."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.cache_routing.setups import BASE, FIGURES, Setup
from experiments.claims.harness.checks import Range
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row

WITHIN = 0.02  # what counts as no difference of TDG ratios and hit rates


def of(rows: pd.DataFrame, setup: Setup, figure: str) -> Any:
    """float64[seeds]"""
    chosen = rows
    for name, value in setup._asdict().items():
        chosen = chosen[chosen[name] == value]
    return chosen.sort_values("seed")[figure].to_numpy()


def mean_of(rows: pd.DataFrame, setup: Setup, figure: str) -> Interval:
    return student_interval(of(rows, setup, figure))


def difference(rows: pd.DataFrame, one: Setup, other: Setup, figure: str) -> Interval:
    """Paired by seed."""
    return student_interval(of(rows, one, figure) - of(rows, other, figure))


class Claim(NamedTuple):
    """A difference that should be above (or below) a number, or within WITHIN of 0."""

    number: int
    one: Setup
    other: Setup
    figure: str
    expected: str  # "above", "below", "within"
    bound: float = 0.0

    @property
    def range(self) -> Range:
        if self.expected == "within":
            return Range(-WITHIN, WITHIN)
        return Range(low=self.bound) if self.expected == "above" else Range(high=self.bound)

    def says(self) -> str:
        return f"within {WITHIN:g} of 0" if self.expected == "within" else f"{self.expected} {self.bound:g}"


def table_of(rows: pd.DataFrame, claims: Sequence[Claim]) -> list[str]:
    """Lines of Markdown: each claim, what was measured, and whether it holds."""
    lines = header("", "family", "difference", "expected", "measured", "")
    for claim in claims:
        interval = difference(rows, claim.one, claim.other, claim.figure)
        what = f"{FIGURES[claim.figure]}, {claim.one.label} - {claim.other.label}"
        measured = in_words(interval, "+")
        lines.append(
            row(str(claim.number), claim.one.family, what, claim.says(), measured, claim.range.verdict(interval))
        )
    return lines


def routers_table(rows: pd.DataFrame, setups: Sequence[Setup], figures: Sequence[str]) -> list[str]:
    """Lines of Markdown: each router cached and not, its figures, and its TDG ratio less BASE's."""
    lines = header("router", "cached", *(FIGURES[name] for name in figures), f"TDG ratio less {BASE}'s")
    for setup in setups:
        base = setup._replace(router=BASE)
        less = "" if setup == base else in_words(difference(rows, setup, base, "tdg"), "+")
        lines.append(row(f"`{setup.router}`", "yes" if setup.cached else "no", *cells(rows, setup, figures), less))
    return lines


def cells(rows: pd.DataFrame, setup: Setup, figures: Sequence[str]) -> list[str]:
    """The mean of each figure; nothing where it has none."""
    intervals = [mean_of(rows, setup, figure) for figure in figures]
    return ["" if math.isnan(interval.mean) else in_words(interval) for interval in intervals]


def in_words(interval: Interval, sign: str = "") -> str:
    return interval.text(f"{sign}.3f")

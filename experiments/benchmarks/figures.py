"""A measured figure, its bound if it has one, and the table in which people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One number of the benchmark. name: with its unit, as in the JSON. at_least, at_most: its bound, if any.

    low, high: the least and the greatest of the repetitions it is the median of, where that is reported.
    """

    name: str
    value: float
    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(
        cls, name: str, values: Sequence[float], meaning: str, at_least: float | None = None,
        at_most: float | None = None,
    ) -> Figure:  # fmt: skip
        """The median of repetitions, and how far they are apart."""
        return cls(name, median(values), meaning, at_least, at_most, min(values), max(values))

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f"at least {written(self.at_least)}"
        return f"at most {written(self.at_most)}" if self.at_most is not None else ""

    @property
    def measured(self) -> str:
        spread = "" if self.low is None or self.high is None else f" ({written(self.low)} to {written(self.high)})"
        return written(self.value) + spread

    @property
    def values(self) -> dict[str, float]:
        """What the JSON says of it."""
        named = {self.name: self.value, f"{self.name}_low": self.low, f"{self.name}_high": self.high}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def met(self) -> str:
        """A missed bound is marked and stops nothing: how fast a machine is depends on what else runs on it."""
        if not self.bound:
            return ""
        missed = (self.at_least is not None and self.value < self.at_least) or (
            self.at_most is not None and self.value > self.at_most
        )
        return "NO" if missed else "yes"


def written(value: float) -> str:
    """A number for people: no decimals from 1000, three significant digits below."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(figures: list[Figure]) -> Table:
    """One row a figure, in Markdown: the table on the screen is the one in docs/results/benchmarks.md."""
    made = Table(box=box.MARKDOWN)
    for title in ("figure", "measured", "bound", "met", "what it is"):
        made.add_column(title, justify="right" if title == "measured" else "left")
    for figure in figures:
        made.add_row(figure.name, figure.measured, figure.bound, figure.met, figure.meaning)
    return made

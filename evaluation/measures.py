"""The measures that policies are ranked by and shown with: one name each, in every table, plot and option."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from servegym.errors import ExperimentError, unknown_name
from servegym.evaluation.intervals import Interval
from servegym.scenarios.values import load_title

LOAD, CLIENTS = "load", "clients"  # the column of cells and summaries that holds the point


def axis_of(names: Container[str]) -> str:
    """The column of a row, of cells or of a summary. names: its columns, or itself."""
    return CLIENTS if CLIENTS in names else LOAD


def point_title(axis: str, point: float) -> str:
    """Heading of a load or a number of clients: "Load 0.7 (medium)", "64 clients"."""
    if axis == LOAD:
        return f"Load {load_title(point)}"
    return "1 client" if point == 1 else f"{point:.0f} clients"


if TYPE_CHECKING:
    import pandas as pd

TDG, GAIN_RATIO = "tdg_ratio", "gain_ratio"
THROUGHPUT = "throughput_requests_per_s"


class Measure(NamedTuple):
    """column: of cells and summaries. scale: of what is shown, in the title's unit. higher: whether more is better."""

    column: str
    title: str
    digits: int = 3
    scale: float = 1.0
    higher: bool = True

    @property
    def name(self) -> str:
        """The title without its unit."""
        return self.title.partition(",")[0]

    def height(self, value: float) -> float:
        """Sort key: higher is better, unknown is worst."""
        return -math.inf if math.isnan(value) else value if self.higher else -value

    def text(self, row: pd.Series, column: str | None = None, sign: str = "") -> str:
        """As `Interval.text`. column: the one that is shown, if not the measure's own, such as that of differences."""
        return Interval.of(row, column or self.column, self.scale).text(f"{sign}.{self.digits}f")


ATTAINMENT = Measure("slo_attainment", "SLO attainment")
RATIOS = {TDG: Measure(TDG, "TDG ratio", 4), GAIN_RATIO: Measure(GAIN_RATIO, "gain / ideal gain", 4)}
P99_TTFT = Measure("ttft_p99_s", "p99 TTFT, s", 2, higher=False)
P99_TPOT = Measure("tpot_p99_s", "p99 TPOT, ms", 1, 1e3, higher=False)
LATE_TOKEN = Measure("violations", "late-token share", higher=False)
STARVED = Measure("starved", "starved", higher=False)
FAIRNESS = Measure("fairness_by_length", "fairness by length")
EVICTIONS = Measure("evictions", "evictions", 1, higher=False)
SERVED = Measure(THROUGHPUT, "requests/s")
# Columns that are there where a scaler is compared, and where the price of an engine is known.
ENGINE_HOURS, COST = Measure("engine_hours", "engine-hours", higher=False), Measure("cost", "cost", higher=False)
OTHERS = {
    "attainment": ATTAINMENT, "p99-ttft": P99_TTFT, "p99-tpot": P99_TPOT, "requests": SERVED, "late-token": LATE_TOKEN,
    "starved": STARVED, "fairness": FAIRNESS,
}  # fmt: skip
RANKS = ("tdg", *OTHERS)
BY_COLUMN = {one.column: one for one in (*RATIOS.values(), *OTHERS.values())}


def shows_late_tokens(slo: str) -> bool:
    """Whether tables show the late-token share by default: under the SLO recipe of the paper that counts late
    tokens.
    """
    return slo.partition(":")[0] == "qoserve"


def ratio_of(table: Container[str]) -> Measure:
    """The gain over the ideal gain of cells or a summary: the TDG ratio, unless the gain is another."""
    is_tdg = GAIN_RATIO not in table or (TDG in table and table[TDG].notna().any())  # type: ignore[index]
    return RATIOS[TDG if is_tdg else GAIN_RATIO]


def ranked_by(name: str, table: Container[str]) -> Measure:
    """The measure of `RANKS` that is named, of cells or a summary. Raises ExperimentError for any other name."""
    return OTHERS[name] if check_rank(name) != "tdg" else ratio_of(table)


def check_rank(name: str) -> str:
    """The name as it is. Raises ExperimentError unless it is one of `RANKS`."""
    if name not in RANKS:
        raise ExperimentError(unknown_name("measure to rank by", name, RANKS))
    return name

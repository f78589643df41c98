"""The target for a served rate: a share of the requests within their SLOs, or a quantile of a latency."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.bisection import Failed
from servegym.evaluation.measures import ATTAINMENT, LATE_TOKEN, Measure
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.state import SimulationState
from servegym.simulator.runs.slos import latencies_of, missed, violated

ATTAINED, VIOLATIONS = "attainment", "violations"
LATENCY = re.compile(r"(?:p(?P<q>\d+)[-_])?(?P<name>ttft|tpot|ttlt)(?:[-_]p(?P<percent>\d+))?")
NAMES = ("ttft", "tpot", "ttlt")  # in the order of `latencies_of`


class Quantile(NamedTuple):
    """Of a latency: "ttft" and 99."""

    latency: str
    percent: int

    def of(self, run: SimulationState, workload: Workload) -> np.ndarray:
        """float64[requests], seconds; nan: not yet, or of a single token no TPOT."""
        outcomes = run.outcomes
        times = latencies_of(workload.table, run.requests["arrival_s"], outcomes["first_token_s"], outcomes["finish_s"])
        return times[NAMES.index(self.latency)]

    def failed(self, most_s: float) -> Failed:
        """bool[requests]: which have taken longer than `most_s`, or certainly will."""

        def failed(run: SimulationState, workload: Workload, now_s: float) -> np.ndarray:
            outcomes, arrival_s, table = run.outcomes, run.requests["arrival_s"], workload.table
            first_s, finish_s = (
                np.where(np.isnan(outcomes[name]), now_s, outcomes[name]) for name in ("first_token_s", "finish_s")
            )
            times = latencies_of(table, arrival_s, first_s, finish_s)[NAMES.index(self.latency)]
            return ~np.isnan(times) & (times > most_s)

        return failed


@dataclasses.dataclass(frozen=True)
class Target:
    """measure: attainment (at least `bound` of the requests), violations (at most `bound`), or a quantile of a latency
    (at most `bound` seconds), such as ttft_p99."""

    measure: str
    bound: float

    @property
    def quantile(self) -> Quantile | None:
        if (found := LATENCY.fullmatch(self.measure)) is None or (found["q"] is None) == (found["percent"] is None):
            return None
        return Quantile(found["name"], int(found["q"] or found["percent"]))

    @property
    def most_failed(self) -> float:
        """The largest share of requests that may fail."""
        if self.quantile is not None:
            return 1 - self.quantile.percent / 100
        return 1 - self.bound if self.measure == ATTAINED else self.bound

    @property
    def failed(self) -> Failed:
        if self.quantile is not None:
            return self.quantile.failed(self.bound)
        return missed if self.measure == ATTAINED else violated

    @property
    def shown(self) -> Measure:
        """What tables show of it, from the column `share` or `quantile_s`."""
        if self.quantile is not None:
            latency, percent = self.quantile
            ms = latency == "tpot"
            return Measure("quantile_s", f"p{percent} {latency.upper()}, {'ms' if ms else 's'}", 2, 1e3 if ms else 1.0)
        return (ATTAINMENT if self.measure == ATTAINED else LATE_TOKEN)._replace(column="share", digits=4)

    @property
    def text(self) -> str:
        return f"{self.measure}={self.bound:g}"

    @property
    def title(self) -> str:
        unit = "" if self.quantile is None else " s"
        name = self.shown.name
        return f"{name} of at {'least' if self.measure == ATTAINED else 'most'} {self.bound:g}{unit}"

    def judges(self, workload: Workload) -> np.ndarray:
        """bool[requests]: which it says something of: of TPOT those with more tokens than one."""
        if self.quantile is not None and self.quantile.latency == "tpot":
            return workload.table["output_tokens"] > 1
        return np.ones(len(workload), bool)

    def reached(
        self, run: SimulationState, workload: Workload, judged: np.ndarray, failed: float
    ) -> dict[str, float | None]:
        """Of a run that has ended. share: of the requests that hold it, or violate; quantile_s: by nearest rank.

        failed: share of the judged requests.
        """
        quantile_s = None
        if self.quantile is not None:
            times = self.quantile.of(run, workload)[judged]
            quantile_s = float(np.quantile(times, self.quantile.percent / 100, method="inverted_cdf"))
        return {"share": failed if self.measure == VIOLATIONS else 1 - failed, "quantile_s": quantile_s}


def parse_target(text: str) -> Target:
    """A target from "attainment=0.99", "violations=0.01" or "ttft_p99=2". Raises ExperimentError."""
    measure, _, value = text.partition("=")
    try:
        target = Target(measure, float(value))
    except ValueError:
        target = Target(measure, math.nan)
    if target.quantile is not None:
        holds = 0 < target.bound < math.inf and 0 < target.quantile.percent < 100
    else:
        holds = measure in (ATTAINED, VIOLATIONS) and 0 <= target.bound <= 1
    if not holds:
        raise ExperimentError(
            f"a target of {text!r}: it should be attainment=0.99 or violations=0.01, the share from 0 to 1, or a "
            "quantile of ttft, tpot or ttlt in seconds, such as ttft_p99=2"
        )
    if target.quantile is not None:
        target = dataclasses.replace(target, measure=f"{target.quantile.latency}_p{target.quantile.percent}")
    return target

"""Goodput: the highest rate at which enough requests meet a target, in steady state and until all are done."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.bisection import failed_counts, highest_rate
from servegym.evaluation.comparing import compile_kernels
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.identity import document_digest
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.repeats import COLUMN, Repeats, repeats_of, windows_of
from servegym.evaluation.running import Progress, Runner, ThreadRunner
from servegym.evaluation.targets import Target
from servegym.scenarios.building import scenario_of, workload_of
from servegym.scenarios.fleets import deployment_of
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import LATEST_S
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import latencies_of

LOADS = (0.02, 8.0)  # range of the search, relative to saturation
STEP = 1.5  # from load 1 up or down to a rate on the other side
# A run is judged by the requests between 50 and 90 % of its arrivals: before, queues are still filling; after, engines
# are emptying.
JUDGED = (0.5, 0.9)
LEAST_DURATION_S, SLOS_LONG = 600.0, 8.0  # of the arrivals; QoServe's 4 hours are 8 times its longest SLO
SEARCHES_FILE = "searches.jsonl"
OF_RUN = ("ttft_p99_s", "tpot_p99_s", "ttlt_p99_s", "requests", "span_s", "is_short")  # of the run that a row is about
WITHIN, BELOW, ABOVE = "within", "below", "above"


class SearchCell(NamedTuple):
    """One search: a scheduler, as `Comparison.candidates` label it, and a seed."""

    scheduler: str
    seed: int


@dataclasses.dataclass(frozen=True)
class GoodputSearch:
    """The goodput of the candidates of a comparison, whose loads, rates and requests are not used.

    Each seed has the same arrivals at all rates, apart from their scale, and for all candidates; its goodput is the
    highest rate found to be served. A rate is served if enough of the requests between 50 and 90 % of the arrivals meet
    the target once all requests have been served.

    duration_s: of the arrivals (None: `LEAST_DURATION_S`, or `SLOS_LONG` times the longest SLO if that is more; a file
    with fewer requests is served whole, and its run counts as not settled, unless the file is resampled). precision:
    largest relative distance from the goodput to the lowest rate that fails. about_per_s: the rate that sets the size
    of a file's windows; each seed has a window of its own as far as there is room (None: `STEP` times saturation).

    Raises ExperimentError for an invalid duration or precision.
    """

    setup: Comparison
    target: Target
    duration_s: float | None = None
    precision: float = 0.02
    about_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ExperimentError(f"a duration of {self.duration_s:g} s: it should be above 0 and finite")
        if not 0 < self.precision <= 1:
            raise ExperimentError(f"a precision of {self.precision:g}: it should be above 0 and at most 1")
        if self.setup.clients:
            raise ExperimentError("a goodput is a rate, and clients have none; compare serves closed loops")
        if self.setup.spec.fleet.incidents:
            raise ExperimentError("a goodput is of a steady state, in which there are no incidents")

    @functools.cached_property
    def lasting_s(self) -> float:
        """The time over which requests arrive."""
        if self.duration_s is not None:
            return self.duration_s
        table = next(iter(self.setup.workloads.values())).table
        longest_s = float(np.where(np.isfinite(table["ttlt_slo_s"]), table["ttlt_slo_s"], table["ttft_slo_s"]).max())
        return max(LEAST_DURATION_S, SLOS_LONG * longest_s) if longest_s < math.inf else LEAST_DURATION_S

    @functools.cached_property
    def seeds(self) -> range:
        """The seeds with runs that differ."""
        return range(self.repeats.runs)

    @functools.cached_property
    def cells(self) -> list[SearchCell]:
        return [SearchCell(label, seed) for seed in self.seeds for label in self.setup.candidates]

    @functools.cached_property
    def rate_about_per_s(self) -> float:
        return STEP * self.setup.saturation_rate_per_s if self.about_per_s is None else self.about_per_s

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """First request of each seed's window of a file, in order; empty if requests are drawn or named."""
        in_file = self.setup.file_requests
        if in_file is None or not self.setup.has_windows:
            return ()
        count = len(windows_of(in_file, self.asked(self.rate_about_per_s), self.setup.seeds))
        return tuple(in_file // count * place for place in range(count))

    @functools.cached_property
    def repeats(self) -> Repeats:
        """How the runs of a scheduler at a rate differ from each other."""
        of_file, windows = self.setup.file_requests is not None, len(self.windows)
        seeds = range(windows if windows > 1 else self.setup.seeds)
        workloads = [self.workload(self.rate_about_per_s, seed) for seed in seeds]
        return repeats_of(self.setup.spec, workloads, seeds=self.setup.seeds, of_file=of_file, windows=windows)

    @functools.cached_property
    def most_requests(self) -> int | None:
        """Number of requests that a trace file has for a run; None: not limited."""
        in_file = None if self.setup.spec.demand.resample else self.setup.file_requests
        return in_file if in_file is None or not self.windows else in_file // len(self.windows)

    def asked(self, rate_per_s: float) -> int:
        """Number of requests of a run of the requested duration."""
        return max(1, round(rate_per_s * self.lasting_s))

    def is_short(self, rate_per_s: float) -> bool:
        """Whether the file has fewer requests than a run of that duration needs."""
        return self.most_requests is not None and self.asked(rate_per_s) > self.most_requests

    def workload(self, rate_per_s: float, seed: int) -> Workload:
        requests, most = self.asked(rate_per_s), self.most_requests
        workload = workload_of(
            self.setup.spec, seed, rate_per_s, requests if most is None else min(requests, most),
            self.windows[seed % len(self.windows)] if self.windows else None,
        )  # fmt: skip
        if workload.turns is not None or self.setup.spec.demand.max_concurrency is not None:
            raise ExperimentError(
                "a goodput is judged by the requests that come in a part of the arrivals; those of sessions and "
                "max_concurrency are not known beforehand"
            )
        return workload

    def served(self, cell: SearchCell, rate_per_s: float) -> dict[str, float] | None:
        """What the judged requests reached at a rate: `Target.reached` and 99th percentiles of latencies; None if the
        rate is not served.
        """
        candidate = self.setup.candidates[cell.scheduler]
        workload = self.workload(rate_per_s, cell.seed)
        arrival_s = workload.table["arrival_s"]
        from_s, to_s = (arrival_s[0] + share * (arrival_s[-1] - arrival_s[0]) for share in JUDGED)
        judges = self.target.judges(workload)
        judged = (arrival_s >= from_s) & (arrival_s <= to_s) & judges
        if not judged.any():
            judged = judges if judges.any() else np.ones(len(workload), bool)
        one = self.setup.spec_of(candidate)
        run = Simulation(scenario_of(one, workload, deployment_of(one), cell.seed))
        most = np.array([self.target.most_failed * judged.sum() + 1e-9])
        counts = failed_counts(run, judged[None], most, self.target.failed)
        if counts is None:
            return None
        failed = float(counts[0] / judged.sum())
        return {
            **self.target.reached(run.arrays, workload, judged, failed),
            **latencies(run, judged),
            "requests": len(workload),
            "span_s": float(arrival_s[-1] - arrival_s[0]),
            "is_short": self.is_short(rate_per_s),
        }

    def run(self, cell: SearchCell) -> Row:
        """The row of a search. goodput_per_s: None where the lowest rate is not served (`found` is below) or the
        highest is (above); share, quantile_s, settled and `OF_RUN`: at the highest rate that is served."""
        saturation = self.setup.saturation_rate_per_s
        low, high = (load * saturation for load in LOADS)
        best: dict[float, dict[str, float]] = {}

        def is_served(rate_per_s: float) -> bool:
            figures = self.served(cell, rate_per_s)
            if figures is not None:
                best[rate_per_s] = figures
            return figures is not None

        found = highest_rate(is_served, saturation, low, high, precision=1 + self.precision, step=STEP)
        at = best.get(found.served, {}) if found.served is not None else {}
        where = BELOW if found.served is None else ABOVE if found.refused is None else WITHIN
        return {
            **cell._asdict(),
            "goodput_per_s": found.served if where == WITHIN else None,
            "found": where,
            "served_per_s": found.served,
            "refused_per_s": found.refused,
            "runs": found.runs,
            "share": at.get("share"),
            "quantile_s": at.get("quantile_s"),
            **run_figures(at),
            "settled": self.is_settled(at) if at else None,
        }

    def is_settled(self, figures: dict[str, float]) -> bool:
        """Whether queues had time to fill before the judged requests: p99 of TTLT is at most the first half of the
        arrivals, and requests arrived for as long as was asked for.
        """
        return not figures.get("is_short") and figures["ttlt_p99_s"] <= JUDGED[0] * figures["span_s"]

    @property
    def title(self) -> str:
        return f"{self.setup.setting}: {self.target.title}, {self.repeats.times(self.served_words())}"

    def served_words(self, rate_per_s: float | None = None) -> str:
        """Text of a title: the requests of a run. rate_per_s: if known."""
        asked, most = f"{self.lasting_s:g} s of arrivals", self.most_requests
        if most is None or not self.is_short(rate_per_s or self.rate_about_per_s):
            return asked
        if rate_per_s is None:
            return f"{asked}, or the {most:,} requests that there are"
        return f"the {most:,} requests that there are ({most / rate_per_s:.3g} s of arrivals, not {self.lasting_s:g})"

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything on which the results depend."""
        of_loads = ("requests", "rate_per_s_of_load")
        setup = {name: value for name, value in self.setup.identity.items() if name not in of_loads}
        return {
            "goodput": self.target.text, "duration_s": self.lasting_s, "precision": self.precision,
            "rules": [LOADS, STEP, JUDGED], **setup,
        }  # fmt: skip

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity."""
        return Path("results") / f"goodput-{Path(self.setup.trace).stem}-{document_digest(self.identity)}"

    def row_problem(self, row: Row) -> str | None:
        """Describe what is wrong with a row of this search; None if nothing is."""
        if search_of(row) not in self.cells:
            return f"{search_of(row)} is not part of this search"
        return None if row.get("found") in (WITHIN, BELOW, ABOVE) else f"{search_of(row)} does not say what was found"


def run_figures(at: dict[str, float]) -> Row:
    """The figures `OF_RUN` of the run that a row is about; None if there is no run, or the figure is not finite."""
    return {name: value if (value := at.get(name, math.inf)) < math.inf else None for name in OF_RUN}


def latencies(run: Simulation, judged: np.ndarray) -> dict[str, float]:
    """99th percentiles of TTFT, TPOT and TTLT of the requests that are judged and were not refused; inf where over 1 %
    never have one.
    """
    judged = judged & np.isnan(run.arrays.outcomes["refused_s"])
    outcomes, arrival_s = run.arrays.outcomes[judged], run.arrays.requests["arrival_s"][judged]
    table = run.scenario.workload.table[judged]
    ttft_s, tpot_s, ttlt_s = latencies_of(table, arrival_s, outcomes["first_token_s"], outcomes["finish_s"])
    tpot_s = tpot_s[table["output_tokens"] > 1]
    return {"ttft_p99_s": p99(ttft_s), "tpot_p99_s": p99(tpot_s), "ttlt_p99_s": p99(ttlt_s)}


def p99(values: np.ndarray) -> float:
    """The 99th percentile; NaN (never came) counts as longest. inf if there is none."""
    found = (
        float(np.quantile(np.where(np.isnan(values), np.finfo("f8").max, values), 0.99)) if len(values) else math.inf
    )
    return found if found < LATEST_S else math.inf


def search_of(row: Row) -> SearchCell:
    return SearchCell(row.get("scheduler"), row.get("seed"))  # type: ignore[arg-type]


def search_goodput(
    search: GoodputSearch,
    directory: str | Path,
    progress: Progress = lambda done, searches: None,
    *,
    runner: Runner | None = None,
    fresh: bool = False,
) -> pd.DataFrame:
    """Search what has not been searched yet; one row a scheduler and seed (`GoodputSearch.run`).

    directory: rows are kept in its `searches.jsonl` as they come; fresh: discard the rows that are there. Raises
    ExperimentError when the directory holds another search. An interrupt leaves the rows.
    """
    rows = kept_rows(
        Ledger(Path(directory) / SEARCHES_FILE, search.identity, search.row_problem, fresh),
        {cell: cell for cell in search.cells}, search_of, search.run, progress, runner or ThreadRunner(1),
        prepare=lambda: compile_kernels(search.setup),
    )  # fmt: skip
    return pd.DataFrame(rows).assign(**{COLUMN: search.repeats.over})

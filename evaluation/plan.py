"""A plan: how many engines of each device serve a rate well enough, or what rate a number of engines serves well
enough.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.bisection import fewest
from servegym.evaluation.comparing import compile_kernels
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.goodput import ABOVE, OF_RUN, WITHIN, GoodputSearch, SearchCell, run_figures
from servegym.evaluation.identity import document_digest
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.repeats import COLUMN, Repeats
from servegym.evaluation.running import Progress, Runner, ThreadRunner
from servegym.evaluation.targets import Target
from servegym.latency_models.profile import Profile
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import fixed, plain
from servegym.simulator.inputs.deployment import MAX_ENGINES

ROWS_FILE = "plan.jsonl"
OF_A_FLEET = "servegym goodput --spec finds the rate that a fleet of pools serves, under each --router"
MOST = 16  # times as many engines as could just serve the rate at saturation are tried


class PlanCell(NamedTuple):
    """One search: a device, a scheduler as `Comparison.candidates` label it, and a seed."""

    device: str
    scheduler: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The fewest engines of each device that serve a rate, or the highest rate that a given number of engines serves.

    spec: with `rate_per_s` it is the fewest engines, else the highest rate of its `engines`. It may have several
    devices and schedulers. SLOs are as the recipe has them (`keep_slos`), so that they are the same for all.
    target, duration_s, precision: as of a `GoodputSearch`, which says when a rate is served.
    prices: of an engine-hour, by device; others are those of its profile, where that has one.

    A seed has the same requests on all devices and however many engines. Raises ExperimentError for devices named
    twice, prices that are invalid or of no device, pools, and as `GoodputSearch` does.
    """

    spec: ServingSpec
    target: Target
    seeds: int = 5
    duration_s: float | None = None
    precision: float = 0.02
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_devices(self.devices, self.prices)
        if self.spec.fleet.pools or self.spec.fleet.prefill:
            raise ExperimentError(f"a plan is of equal engines, without pools; {OF_A_FLEET}")
        _ = self.of(self.devices[0], 1)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(map(plain, listed(self.spec.fleet.device)))

    @property
    def rate_per_s(self) -> float | None:
        """The rate to be served; None: the highest is searched for."""
        rate = fixed("rate_per_s", self.spec.demand.rate_per_s)
        return None if rate is None else float(rate)

    @property
    def engines(self) -> int:
        """Number of engines for which the highest rate is searched."""
        return int(fixed("engines", self.spec.fleet.engines))

    def of(
        self, device: str, engines: int, duration_s: float | None = None, about_per_s: float | None = None
    ) -> GoodputSearch:
        spec = self.spec.replaced(device=device, engines=engines, load=1.0, keep_slos=True)
        setup = Comparison(spec, self.seeds)
        return GoodputSearch(setup, self.target, duration_s or self.duration_s, self.precision, about_per_s)

    def with_engines(self, device: str, engines: int) -> GoodputSearch:
        """The searches with so many engines of a device; all devices serve the same requests, those for the fastest
        one's rate.
        """
        return self.of(device, engines, self.lasting_s, self.about_per_s)

    @functools.cached_property
    def lasting_s(self) -> float:
        """The time over which requests arrive."""
        return self.of(self.devices[0], 1).lasting_s

    @functools.cached_property
    def about_per_s(self) -> float:
        """The rate that is asked for, or what rates are found about."""
        if self.rate_per_s is not None:
            return self.rate_per_s
        return max(self.of(device, self.engines, self.lasting_s).rate_about_per_s for device in self.devices)

    @functools.cached_property
    def by_device(self) -> dict[str, GoodputSearch]:
        """The searches with the engines that are given, or one where they are looked for."""
        engines = self.engines if self.rate_per_s is None else 1
        return {device: self.with_engines(device, engines) for device in self.devices}

    @property
    def repeats(self) -> Repeats:
        """How the runs of a device at a rate differ from each other."""
        return self.by_device[self.devices[0]].repeats

    @functools.cached_property
    def cells(self) -> list[PlanCell]:
        return [
            PlanCell(device, label, seed)
            for seed in self.by_device[self.devices[0]].seeds
            for device, search in self.by_device.items()
            for label in search.setup.candidates
        ]

    def price_per_hour(self, device: str) -> float | None:
        """Price of an engine-hour; None: not known."""
        return price_per_hour(self.by_device[device].setup.profile, self.prices.get(device))

    def run(self, cell: PlanCell) -> Row:
        """The row of a search: of the cell, engines and rate_per_s (None where there is none: `found` says why), share,
        settled and `OF_RUN` as of a goodput, output_tokens a request, runs."""
        search, of_search = self.by_device[cell.device], SearchCell(cell.scheduler, cell.seed)
        if self.rate_per_s is None:
            row = search.run(of_search)
            taken = {name: row[name] for name in ("found", "share", "quantile_s", "settled", "runs", *OF_RUN)}
            highest = row["goodput_per_s"]
            own = {"engines": self.engines, "rate_per_s": highest, "output_tokens": self.output_tokens(cell, highest)}
            return {**cell._asdict(), **taken, **own}
        rate, figures = self.rate_per_s, dict[int, dict[str, float]]()

        def is_enough(engines: int) -> bool:
            served = self.with_engines(cell.device, engines).served(of_search, rate)
            if served is not None:
                figures[engines] = served
            return served is not None

        first = max(1, math.ceil(rate / search.setup.saturation_rate_per_s))
        found = fewest(is_enough, first, min(MOST * first, MAX_ENGINES))
        at = None if found.enough is None else figures[found.enough]
        return {
            **cell._asdict(),
            "found": ABOVE if found.enough is None else WITHIN,
            "share": at["share"] if at else None,
            "quantile_s": at["quantile_s"] if at else None,
            "settled": search.is_settled(at) if at else None,
            "runs": found.runs,
            **run_figures(at or {}),
            "engines": found.enough,
            "rate_per_s": rate,
            "output_tokens": self.output_tokens(cell, rate),
        }

    def output_tokens(self, cell: PlanCell, rate_per_s: float | None) -> float | None:
        """Mean output tokens of a request; None if there is no rate."""
        if rate_per_s is None:
            return None
        return float(self.by_device[cell.device].workload(rate_per_s, cell.seed).table["output_tokens"].mean())

    @property
    def title(self) -> str:
        """A line that describes the plan."""
        search = self.by_device[self.devices[0]]
        asked = (
            f"highest rate of {self.engines} engine{'s' * (self.engines > 1)}" if self.rate_per_s is None
            else f"fewest engines at {self.rate_per_s:g} requests/s"
        )  # fmt: skip
        by = ", ".join(search.setup.candidates)
        served = self.repeats.times(search.served_words(self.rate_per_s))
        return f"{search.setup.trace_name}, SLOs {search.setup.slo}: {asked} by {by}, {self.target.title}, {served}"

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the rows depend on; prices are no part of them."""
        searches = {device: search.identity for device, search in self.by_device.items()}
        return {"plan": self.rate_per_s or "highest rate", "most": MOST, "of": searches}

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity."""
        trace = Path(self.by_device[self.devices[0]].setup.trace).stem
        return Path("results") / f"plan-{trace}-{document_digest(self.identity)}"

    def row_problem(self, row: Row) -> str | None:
        """Describe what is wrong with a row of this plan; None if nothing is."""
        if cell_of(row) not in self.cells:
            return f"{cell_of(row)} is not part of this plan"
        return None if "engines" in row and "found" in row else f"{cell_of(row)} does not say what was found"


def check_devices(devices: Sequence[str], prices: Mapping[str, float]) -> None:
    """Raise ExperimentError for a device that is named twice, and for a price that is invalid or of no device."""
    for device in devices:
        if devices.count(device) > 1:
            raise ExperimentError(f"device {device} is named twice")
    for device, price in prices.items():
        if device not in devices:
            raise ExperimentError(f"a price of {device}; it should be of {', '.join(devices)}")
        if not 0 <= price < math.inf:
            raise ExperimentError(f"a price of {price:g} for {device}: it should be 0 or more, and finite")


def price_per_hour(profile: Profile, given: float | None) -> float | None:
    """Return the price of an engine-hour: the given one, or that of the profile; None: not known."""
    costs = profile.deployment().costs
    return given if given is not None or costs is None else costs.price_per_hour


def cell_of(row: Row) -> PlanCell:
    return PlanCell(*(row.get(name) for name in PlanCell._fields))  # type: ignore[arg-type]


def make_plan(
    plan: Plan,
    directory: str | Path,
    progress: Progress = lambda done, searches: None,
    *,
    runner: Runner | None = None,
    fresh: bool = False,
) -> pd.DataFrame:
    """Search what has not been searched yet; one row a device, scheduler and seed (`Plan.run`).

    directory: rows are kept in its `plan.jsonl` as they come; fresh: those that are there are forgotten. Raises
    ExperimentError when the directory holds another plan. An interrupt leaves the rows.
    """

    def prepare() -> None:
        for search in plan.by_device.values():
            compile_kernels(search.setup)

    rows = kept_rows(
        Ledger(Path(directory) / ROWS_FILE, plan.identity, plan.row_problem, fresh),
        {cell: cell for cell in plan.cells}, cell_of, plan.run, progress, runner or ThreadRunner(1), prepare=prepare,
    )  # fmt: skip
    return pd.DataFrame(rows).assign(**{COLUMN: plan.repeats.over})

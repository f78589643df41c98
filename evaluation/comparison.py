"""A comparison: schedulers x routers x scalers x loads (or clients) x seeds; of a seed all serve the same requests."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.errors import ExperimentError
from servegym.evaluation.candidates import ROUTER, Candidate, find_candidates, find_schedulers
from servegym.evaluation.figures import FIGURES, class_figures, figures
from servegym.evaluation.identity import code_digests, deployment_digest, document_digest, versions
from servegym.evaluation.ledger import Row
from servegym.evaluation.points import CLIENTS, LOAD
from servegym.evaluation.repeats import Repeats, repeats_of, windows_of
from servegym.latency_models.profile import Profile
from servegym.scenarios.building import (
    file_requests,
    front_end_in,
    gain_in,
    own_rate_per_s,
    saturation_of,
    scenario_of,
    workload_of,
)
from servegym.scenarios.demand import Demand
from servegym.scenarios.fleets import deployment_of, profile_of, title_of
from servegym.scenarios.load import LOADS
from servegym.scenarios.parts import Policies
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import fixed, plain
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.arrivals import takes_rate

SCHEDULERS = (
    "vllm-fcfs", "vllm-v1", "sarathi-fcfs", "sarathi-priority", "edf", "sjf", "slide-batching", "expected-gain",
)  # fmt: skip
# Of azure-conv on the default device 3000 requests are 23 minutes of arrivals at load 0.3 and 5 at 1.4: at 1.4 the
# queue grows for 200 times the TTFT SLO, so that every scheduler has to choose which to fail, for nearly all of a run.
REQUESTS = 3000
# Fields that may have several values in a comparison; so may the number of clients instead. The seed belongs to a run.
COMPARED_BY = ("load", "rate_per_s", "scheduler", "router", "scaler", "seed")
DEFAULTS = ServingSpec().overrides()
WINDOW_BY_SEED = DEFAULTS["window"]
TITLE_FIELDS = (
    *COMPARED_BY, "trace", "columns", "time_unit", "drop_empty", "sort", "slo", "requests", "resample", "device",
    "engines", "prefill", "decode", "pools", "incidents",
)  # fmt: skip


class Cell(NamedTuple):
    """One run of a comparison. scheduler: its label, with the router's and scaler's where several are compared. point:
    the load, or the number of clients."""

    scheduler: str
    point: float
    seed: int


COMPARED = ServingSpec(
    Demand(load=tuple(LOADS.values())), policies=Policies(scheduler=SCHEDULERS, router=ROUTER)
)  # compared by default


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared, on what: a spec at each of its loads, rates or numbers of clients, under each of its
    schedulers, routers, scalers.

    spec: of all other fields it has one value. requests: of each run (None: `REQUESTS`, or all of a file that has no
    two windows of so many). seeds: how many; they are 0, 1, ... Of a file each seed has a window of its own, as far as
    there is room for windows that do not overlap; where all seeds have the same run there is one (`repeats`).

    Raises SpecError for a spec with several values of anything else, ExperimentError for an empty or repeated list; the
    names are looked up when they are needed and raise PolicyError, ProfileError, WorkloadError.
    """

    spec: ServingSpec = COMPARED
    seeds: int = 5

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ExperimentError(f"{self.seeds} seeds: a comparison has at least 1")
        for name in self.spec.varied:
            if name not in (*COMPARED_BY, CLIENTS):
                fixed(name, self.spec[name])
        for what, values in (
            ("scheduler", self.schedulers), ("router", self.routers), ("scaler", self.scalers), ("load", self.loads),
            ("rate", self.rates_per_s), (CLIENTS, self.clients),
        ):  # fmt: skip
            repeated = [value for value in values if values.count(value) > 1]
            if repeated:
                raise ExperimentError(f"{what} {repeated[0]} is named twice")
        if not self.loads and not self.rates_per_s and not self.clients:
            raise ExperimentError("a comparison has at least one load or rate, or a number of clients")
        if len(self.routers) > 1 and self.spec.fleet.total == 1:
            raise ExperimentError("several routers, and one engine: routers differ where there are more engines")
        if self.arrivals is not None and not takes_rate(self.arrivals):
            raise ExperimentError(
                f"arrivals {self.arrivals} have a pace of their own, and here rates are compared: leave out gap_s, or "
                "take others, such as poisson"
            )
        _ = self.gain

    @property
    def schedulers(self) -> tuple[str, ...]:
        return tuple(map(plain, listed(self.spec.policies.scheduler)))

    @property
    def routers(self) -> tuple[str, ...]:
        return tuple(map(plain, listed(self.spec.policies.router))) or (ROUTER,)

    @property
    def scalers(self) -> tuple[str, ...]:
        return tuple(map(plain, listed(self.spec.policies.scaler)))

    @property
    def loads(self) -> tuple[float, ...]:
        return listed(self.spec.demand.load)

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        return listed(self.spec.demand.rate_per_s)

    @property
    def clients(self) -> tuple[int, ...]:
        return listed(self.spec.demand.clients)

    @property
    def axis(self) -> str:
        """The axis of the comparison: loads, or clients."""
        return CLIENTS if self.clients else LOAD

    @property
    def trace(self) -> str:
        return str(fixed("trace", self.spec.demand.trace))

    @property
    def slo(self) -> str:
        return str(fixed("slo", self.spec.demand.slo))

    @property
    def arrivals(self) -> str | None:
        return fixed("arrivals", self.spec.demand.arrivals)

    @property
    def gain(self) -> Gain:
        return gain_in(self.spec)

    @functools.cached_property
    def candidates(self) -> dict[str, Candidate]:
        """The candidates by label, in the order named."""
        return find_candidates(self.schedulers, self.routers, self.scalers)

    @functools.cached_property
    def policies(self) -> dict[str, Policy]:
        """The schedulers by their labels, in the order they were named."""
        return find_schedulers(self.schedulers)

    @property
    def profile(self) -> Profile:
        return profile_of(self.spec)

    @property
    def deployment(self) -> Deployment | Cluster:
        return deployment_of(self.spec)

    def spec_of(self, candidate: Candidate) -> ServingSpec:
        """The spec under a candidate: with its own scheduler of the decode engines, where it has one."""
        own = self.spec.policies.decode_scheduler
        one = self.spec.with_values(candidate._asdict() | {"decode_scheduler": candidate.decode_scheduler or own})
        return one.checked()

    def deployment_of(self, candidate: Candidate) -> Deployment | Cluster:
        """What serves under a candidate."""
        return deployment_of(self.spec_of(candidate))

    @functools.cached_property
    def requests_per_run(self) -> int:
        if self.spec.demand.requests is not None:
            return int(fixed("requests", self.spec.demand.requests))
        in_file = self.file_requests
        return REQUESTS if in_file is None or in_file >= 2 * REQUESTS else in_file

    @functools.cached_property
    def file_requests(self) -> int | None:
        """Number of requests in the trace file; None: requests are drawn."""
        return file_requests(self.spec)

    @functools.cached_property
    def own_rate_per_s(self) -> float | None:
        """Mean arrival rate by the file's own times; None if it has none."""
        return None if self.file_requests is None else own_rate_per_s(self.spec)

    @functools.cached_property
    def saturation_rate_per_s(self) -> float:
        return saturation_of(self.spec)

    @functools.cached_property
    def rate_of_load(self) -> dict[float, float]:
        """Requests per second of each load, in the order they were named; none in closed loops."""
        if self.rates_per_s:
            return {rate / self.saturation_rate_per_s: rate for rate in self.rates_per_s}
        return {load: load * self.saturation_rate_per_s for load in self.loads}

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """All runs; those of one workload are neighbours."""
        return [
            Cell(scheduler, point, seed)
            for point in self.points
            for seed in self.seeds_of(point)
            for scheduler in self.candidates
        ]

    @property
    def points(self) -> tuple[float, ...]:
        """The loads, or numbers of clients, in the order they were named."""
        return self.clients or tuple(self.rate_of_load)

    def asked_seeds(self, point: float) -> range:
        """The seeds that are asked for at a point."""
        return range(self.seeds)

    def seeds_of(self, point: float) -> range:
        """The seeds with runs that differ."""
        return self.asked_seeds(point)[: self.repeats.runs]

    @property
    def has_windows(self) -> bool:
        """Whether seeds say which requests of a file are served."""
        return not self.spec.demand.resample and self.spec.demand.window == WINDOW_BY_SEED

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """First request of each seed's window of a file, in order; empty if requests are drawn or named."""
        if self.file_requests is None or not self.has_windows:
            return ()
        return windows_of(self.file_requests, self.requests_per_run, self.seeds)

    @functools.cached_property
    def repeats(self) -> Repeats:
        """How the runs of a scenario differ."""
        first = self.points[0]
        return repeats_of(
            self.spec, [workload for (point, _), workload in self._asked.items() if point == first],
            seeds=self.seeds, of_file=self.file_requests is not None, windows=len(self.windows),
        )  # fmt: skip

    @functools.cached_property
    def _asked(self) -> dict[tuple[float, int], Workload]:
        """Workloads by load (or clients) and seed, before seeds with equal runs are dropped."""
        many = len(self.windows) if len(self.windows) > 1 else self.seeds
        keys = [
            (point, seed, place) for point in self.points for place, seed in enumerate(self.asked_seeds(point)[:many])
        ]
        made = {
            (point, seed): workload_of(
                self.spec, seed, self.rate_of_load.get(point), self.requests_per_run,
                self.windows[place % len(self.windows)] if self.windows else None,
            )
            for point, seed, place in sorted(keys, key=lambda key: key[1])  # `generate` draws a seed once
        }  # fmt: skip
        return {(point, seed): made[point, seed] for point, seed, _ in keys}

    @functools.cached_property
    def workloads(self) -> dict[tuple[float, int], Workload]:
        """The workloads that all schedulers serve, by load (or clients) and seed."""
        return {(point, seed): self._asked[point, seed] for point in self.points for seed in self.seeds_of(point)}

    def scenario(self, point: float, seed: int, candidate: Candidate) -> Scenario:
        """The scenario of a run."""
        one = self.spec_of(candidate)
        if self.axis == CLIENTS:
            one = one.with_values({CLIENTS: point})
        return scenario_of(one, self.workloads[point, seed], deployment_of(one), seed)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Provenance of the first workload: repairs to the trace, and what the recipe changed for this device."""
        return next(iter(self.workloads.values())).provenance

    @property
    def trace_name(self) -> str:
        """The family, or the file without its folder."""
        return Path(self.trace).name

    @property
    def title(self) -> str:
        """A title of one line: what is compared."""
        return f"{self.setting}: {self.repeats.times(f'{self.requests_per_run} requests')}"

    @property
    def setting(self) -> str:
        """What is served, by what."""
        routed = ""
        if self.spec.fleet.total > 1 and self.routers != (ROUTER,):
            routed = f", router{'s' * (len(self.routers) > 1)} {', '.join(self.routers)}"
        for what, texts in (("scaler", self.scalers), ("incident", plain(self.spec.fleet.incidents))):
            if texts:
                routed += f", {what}{'s' * (len(texts) > 1)} {', '.join(map(str, texts))}"
        said = {
            name: value for name, value in self.settings.items() if value != DEFAULTS[name] and name not in TITLE_FIELDS
        }
        routed += "".join(f", {name.replace('_', ' ')} {value}" for name, value in said.items())
        return f"{self.trace_name} on {title_of(self.spec)}{routed}, SLOs {self.slo}"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the spec that have one value, as JSON has them."""
        return {
            name: value
            for name, value in self.spec.overrides().items()
            if name not in COMPARED_BY and name != self.axis
        }

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the results depend on: two comparisons with the same identity have the same results."""
        return {
            **self.settings,
            "front_end": plain(front_end_in(self.spec)),
            "trace": self.trace_name,
            "gain": dataclasses.asdict(self.gain),
            "device": self.profile.name,
            "schedulers": [policy.to_json() for policy in self.policies.values()],
            "routers": [find_router(text).to_json() for text in self.routers],
            "scalers": [find_scaler(text).to_json() for text in self.scalers],
            "requests": self.requests_per_run,
            "seeds": self.seeds,
            **self._paces,
            "versions": versions(),
            "code": code_digests(
                [policy for candidate in self.candidates.values() for policy in candidate.policies], self.deployment
            ),
            "deployment": deployment_digest(self.deployment),
            "workloads": {
                f"{self.axis} {point!r}, seed {seed}": digest for (point, seed), digest in self._digests.items()
            },
        }

    @property
    def _paces(self) -> dict[str, Any]:
        if self.axis == CLIENTS:
            return {CLIENTS: list(self.clients)}
        return {
            "rate_per_s_of_load": {str(load): rate for load, rate in self.rate_of_load.items()},
            "saturation_rate_per_s": self.saturation_rate_per_s,
        }

    @functools.cached_property
    def _digests(self) -> dict[tuple[float, int], str]:
        return {key: workload.digest for key, workload in self.workloads.items()}

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity, so that the same comparison finds its results again."""
        return Path("results") / f"compare-{Path(self.trace).stem}-{document_digest(self.identity)}"

    def run(self, cell: Cell) -> Row:
        """The row of a cell."""
        key = cell.point, cell.seed
        result = Simulation(self.scenario(*key, self.candidates[cell.scheduler])).run()
        rate = {} if self.axis == CLIENTS else {"rate_per_s": self.rate_of_load[cell.point]}
        return {
            "scheduler": cell.scheduler,
            self.axis: cell.point,
            "seed": cell.seed,
            **rate,
            "workload": self._digests[key],
            "reroutes": result.summary["reroutes"],
            **figures(result),
            **class_figures(result),
        }

    def row_problem(self, row: Row) -> str | None:
        """What is wrong with a row that should be one of this comparison's; None if nothing is."""
        values: list[Any] = [row.get(field) for field in ("scheduler", self.axis, "seed")]
        cell = Cell(*values)
        if cell not in self.cells:
            return f"{cell} is not part of this comparison"
        if row.get("workload") != self._digests[cell.point, cell.seed]:
            return f"the workload of {cell} was another"
        bad = [name for name in FIGURES if not isinstance(row.get(name, ""), int | float | None)]
        return f"{cell} has no number for {', '.join(bad)}" if bad else None

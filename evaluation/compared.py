"""The subject of a comparison: a spec with several schedulers, routers, scalers and loads (or clients)."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from servegym.errors import ExperimentError
from servegym.evaluation.candidates import ROUTER, Candidate, find_candidates, find_schedulers
from servegym.evaluation.measures import CLIENTS, LOAD
from servegym.latency_models.profile import Profile
from servegym.scenarios.building import file_requests, gain_in, own_rate_per_s, saturation_of
from servegym.scenarios.demand import Demand
from servegym.scenarios.fleets import deployment_of, profile_of, profiles_of, title_of
from servegym.scenarios.parts import Policies
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import LOADS, fixed, plain
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.traces.arrivals import takes_rate

SCHEDULERS = (
    "vllm-fcfs", "vllm-v1", "sarathi-fcfs", "sarathi-priority", "edf", "sjf", "slide-batching",
    "expected-gain",
)  # fmt: skip
# Of azure-conv on the default device 3000 requests are 23 minutes of arrivals at load 0.3 and 5 at 1.4: at 1.4 the
# queue grows for 200 times the TTFT SLO, so that every scheduler has to choose which to fail, for nearly all of a run.
REQUESTS = 3000
# Fields that may have several values in a comparison; so may the number of clients instead. The seed belongs to a run.
COMPARED_BY = ("load", "rate_per_s", "scheduler", "router", "scaler", "seed")
DEFAULTS = ServingSpec().overrides()
TITLE_FIELDS = (
    *COMPARED_BY, "trace", "columns", "time_unit", "drop_empty", "sort", "slo", "requests", "resample", "device",
    "engines", "prefill", "decode", "pools", "incidents",
)  # fmt: skip
COMPARED = ServingSpec(
    Demand(load=tuple(LOADS.values())), policies=Policies(scheduler=SCHEDULERS, router=ROUTER)
)  # compared by default


@dataclasses.dataclass(frozen=True)
class Compared:
    """The spec of a comparison, with its policies, loads and engines.

    spec: it may have several loads, rates or numbers of clients, schedulers, routers and scalers, and one value of any
    other field. requests: of each run (None: `REQUESTS`, or all of a file that has no two windows of so many).
    seeds: how many; they are 0, 1, ...

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
        return listed(self.spec.demand.load, "load")

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        return listed(self.spec.demand.rate_per_s, "rate_per_s")

    @property
    def clients(self) -> tuple[int, ...]:
        return listed(self.spec.demand.clients, "clients")

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
        """The device; of a fleet of several, that of the first pool."""
        return profile_of(self.spec)

    @property
    def profiles(self) -> list[Profile]:
        """All devices of the fleet."""
        return profiles_of(self.spec)

    @property
    def deployment(self) -> Deployment | Cluster:
        return deployment_of(self.spec)

    def spec_of(self, candidate: Candidate) -> ServingSpec:
        """The spec under a candidate: with its own scheduler of the decode engines, where it has one."""
        own = self.spec.policies.decode_scheduler
        one = self.spec.with_values(candidate._asdict() | {"decode_scheduler": candidate.decode_scheduler or own})
        return one.checked()

    def deployment_of(self, candidate: Candidate) -> Deployment | Cluster:
        """The engines under a candidate."""
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

    @property
    def points(self) -> tuple[float, ...]:
        """The loads, or numbers of clients, in the order they were named."""
        return self.clients or tuple(self.rate_of_load)

    @property
    def trace_name(self) -> str:
        """The family, or the file without its folder."""
        return Path(self.trace).name

    @property
    def setting(self) -> str:
        """Text: the requests and the engines."""
        routed = ""
        if self.spec.fleet.total > 1 and self.routers != (ROUTER,):
            routed = f", router{'s' * (len(self.routers) > 1)} {', '.join(self.routers)}"
        for what, texts in (("scaler", self.scalers), ("incident", plain(self.spec.fleet.incidents))):
            if texts:
                routed += f", {what}{'s' * (len(texts) > 1)} {', '.join(map(str, texts))}"
        others = {
            name: value for name, value in self.settings.items() if value != DEFAULTS[name] and name not in TITLE_FIELDS
        }
        routed += "".join(f", {name.replace('_', ' ')} {value}" for name, value in others.items())
        return f"{self.trace_name} on {title_of(self.spec)}{routed}, SLOs {self.slo}"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the spec that have one value, as JSON has them."""
        return {
            name: value
            for name, value in self.spec.overrides().items()
            if name not in COMPARED_BY and name != self.axis
        }

"""A comparison: schedulers x routers x scalers x loads x seeds; all of a load and a seed serve the same requests."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.experiments.contenders import ROUTER, Contender, find_contenders, find_schedulers
from servegym.experiments.deployments import (
    HOST_GB_PER_S,
    LINK_GB_PER_S,
    Engines,
    parse_incident,
    with_decode_scheduler,
)
from servegym.experiments.errors import ExperimentError
from servegym.experiments.figures import FIGURES, class_figures, figures
from servegym.experiments.identity import code_digests, deployment_digest, versions
from servegym.experiments.ledger import Ledger, Row, kept_rows
from servegym.experiments.load import LOADS, saturation_rate_per_s
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.cluster import Cluster
from servegym.simulator.deployment import Deployment
from servegym.simulator.gains import Gain, gain_of
from servegym.simulator.incidents import Incident
from servegym.simulator.policies import Policy
from servegym.simulator.simulation import Scenario, Simulation
from servegym.simulator.workload import Workload
from servegym.traces.arrivals import takes_rate
from servegym.traces.workloads import build_workload, load_trace
from servegym.tuners.running import Runner, ThreadRunner

if TYPE_CHECKING:
    import pandas as pd

SCHEDULERS = (
    "vllm-fcfs", "vllm-v1", "sarathi-fcfs", "sarathi-priority", "edf", "sjf", "slide-batching",
)  # fmt: skip
# Of azure-conv on the default device 3000 requests are 23 minutes of arrivals at load 0.3 and 5 at 1.4: at 1.4 the
# queue grows for 200 times the TTFT SLO, so that every scheduler has to choose whom to fail, for nearly all of a run.
REQUESTS = 3000
CELLS_FILE = "cells.jsonl"

Progress = Callable[[int, int], None]  # (cells done, cells in all)


class Cell(NamedTuple):
    """One run of a comparison. scheduler: its label, with the router's and scaler's where several are compared."""

    scheduler: str
    load: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared, on what.

    trace, slo, device: as `servegym.simulate` takes them. arrivals: as `build_workload` does. gain: as `gain_of`.
    engines, prefill, decode, link_gb_per_s, decode_scheduler, signal_delay_s, prefix_store_tokens, host_gb_per_s: as
        `Engines` takes them. incidents: as `parse_incident` does; they happen in each run.
    routers, scalers: "name" or "name:key=value,..."; where there are several, each scheduler is run under each.
    schedulers: "name" or "name:key=value,...". loads: rates relative to saturation (see `saturation_rate_per_s`).
    rates_per_s: absolute rates; where there are any they take the place of the loads.
    seeds: how many; they are 0, 1, ... requests: of each run (None: `REQUESTS`, or all of a file with fewer).

    Raises ExperimentError for an empty or repeated list; the names are looked up when they are needed and raise
    PolicyError, ProfileError, WorkloadError.
    """

    trace: str = "azure-conv"
    slo: str = "proserve"
    device: str = "a100-llama3-8b"
    engines: int = 1
    prefill: int = 0
    decode: int = 0
    link_gb_per_s: float = LINK_GB_PER_S
    decode_scheduler: str | None = None
    signal_delay_s: float = 0.0
    prefix_store_tokens: int = 0
    host_gb_per_s: float = HOST_GB_PER_S
    incidents: tuple[str, ...] = ()
    routers: tuple[str, ...] = (ROUTER,)
    scalers: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = SCHEDULERS
    loads: tuple[float, ...] = tuple(LOADS.values())
    rates_per_s: tuple[float, ...] = ()
    seeds: int = 5
    requests: int | None = None
    arrivals: str | None = None
    gain: str = "tdg"

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ExperimentError(f"{self.seeds} seeds: a comparison has at least 1")
        for what, values in (
            ("scheduler", self.schedulers), ("router", self.routers), ("scaler", self.scalers), ("load", self.loads),
            ("rate", self.rates_per_s),
        ):  # fmt: skip
            repeated = [value for value in values if values.count(value) > 1]
            if repeated:
                raise ExperimentError(f"{what} {repeated[0]} is named twice")
        if not self.schedulers or not self.routers or not (self.loads or self.rates_per_s):
            raise ExperimentError("a comparison has at least one scheduler, one router and one load or rate")
        if len(self.routers) > 1 and self.serving.total == 1:
            raise ExperimentError("several routers, and one engine: routers differ where there are more engines")
        for what, numbers in (("load", self.loads), ("rate", self.rates_per_s)):
            for number in numbers:
                if not 0 < number < math.inf:
                    raise ExperimentError(f"a {what} of {number:g}: it should be above 0 and finite")
        if self.arrivals is not None and not takes_rate(self.arrivals):
            raise ExperimentError(
                f"arrivals {self.arrivals} have a pace of their own, and here rates are compared: leave out gap_s, or "
                "take others, such as poisson"
            )
        _ = self.happenings, self.token_gain

    @property
    def serving(self) -> Engines:
        return Engines(
            self.engines, self.prefill, self.decode, self.link_gb_per_s, self.decode_scheduler, self.signal_delay_s,
            self.prefix_store_tokens, self.host_gb_per_s,
        )  # fmt: skip

    @property
    def happenings(self) -> tuple[Incident, ...]:
        """What happens to engines in each run."""
        return tuple(parse_incident(text, self.serving.total) for text in self.incidents)

    @property
    def token_gain(self) -> Gain:
        return gain_of(self.gain)

    @functools.cached_property
    def contenders(self) -> dict[str, Contender]:
        """What is compared, by its label, in the order it was named."""
        return find_contenders(self.schedulers, self.routers, self.scalers)

    @functools.cached_property
    def policies(self) -> dict[str, Policy]:
        """The schedulers by their labels, in the order they were named."""
        return find_schedulers(self.schedulers)

    @functools.cached_property
    def profile(self) -> Profile:
        return load_profile(self.device)

    @functools.cached_property
    def deployment(self) -> Deployment | Cluster:
        return self.serving.deployment(self.profile)

    def deployment_of(self, contender: Contender) -> Deployment | Cluster:
        """What serves under a contender: with its own scheduler of the decode engines, where it has one."""
        if contender.decode_scheduler is None:
            return self.deployment
        return with_decode_scheduler(self.deployment, contender.decode_scheduler)

    @functools.cached_property
    def requests_per_run(self) -> int:
        if self.requests is not None:
            return self.requests
        return min(REQUESTS, len(load_trace(self.trace, default_requests=REQUESTS)))

    @functools.cached_property
    def saturation_rate_per_s(self) -> float:
        return saturation_rate_per_s(self.trace, self.profile, self.serving.total, self.slo)

    @functools.cached_property
    def rate_of_load(self) -> dict[float, float]:
        """Requests per second of each load, in the order they were named."""
        if self.rates_per_s:
            return {rate / self.saturation_rate_per_s: rate for rate in self.rates_per_s}
        return {load: load * self.saturation_rate_per_s for load in self.loads}

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """Every run there is to do; those of one workload are neighbours."""
        return [
            Cell(scheduler, load, seed)
            for load in self.rate_of_load
            for seed in range(self.seeds)
            for scheduler in self.contenders
        ]

    @functools.cached_property
    def workloads(self) -> dict[tuple[float, int], Workload]:
        """What all schedulers serve, by load and seed. Of a file longer than a run every seed sees another window: else
        a file's requests were the same for all seeds, and an interval over seeds would show the priorities only."""
        workloads = {
            (load, seed): build_workload(
                self.trace,
                requests=self.requests_per_run,
                rate_per_s=rate_per_s,
                slo=self.slo,
                arrivals=self.arrivals,
                seed=seed,
                window="seed",
                idle_tpot_s=self.profile.idle_tpot_s,
            )
            for load, rate_per_s in self.rate_of_load.items()
            for seed in range(self.seeds)
        }
        self.serving.check_serves(next(iter(workloads.values())))
        return workloads

    def scenario(self, load: float, seed: int, contender: Contender) -> Scenario:
        """What a run is of."""
        return Scenario(
            self.workloads[load, seed], self.deployment_of(contender), contender.scheduler, self.token_gain,
            router=contender.router, scaler=contender.scaler, incidents=self.happenings,
        )  # fmt: skip

    @functools.cached_property
    def slo_notes(self) -> list[str]:
        """What the recipe changed for this device."""
        return list(next(iter(self.workloads.values())).provenance.get("slo_notes", ()))

    @property
    def trace_name(self) -> str:
        """The family, or the file without its folder."""
        return Path(self.trace).name

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        return f"{self.setting}: {self.requests_per_run} requests x {self.seeds} seed{'s' * (self.seeds > 1)}"

    @property
    def setting(self) -> str:
        """What is served, by what."""
        routed = ""
        if self.serving.total > 1 and self.routers != (ROUTER,):
            routed = f", router{'s' * (len(self.routers) > 1)} {', '.join(self.routers)}"
        for what, texts in (("scaler", self.scalers), ("incident", self.incidents)):
            if texts:
                routed += f", {what}{'s' * (len(texts) > 1)} {', '.join(texts)}"
        if self.arrivals is not None:
            routed += f", arrivals {self.arrivals}"
        if self.gain != "tdg":
            routed += f", gain {self.gain}"
        return f"{self.trace_name} on {self.serving.title}{self.profile.name}{routed}, SLOs {self.slo}"

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the results depend on. Two comparisons with the same identity have the same results."""
        return {
            "trace": self.trace_name,
            "slo": self.slo,
            "arrivals": self.arrivals,
            "gain": dataclasses.asdict(self.token_gain),
            "device": self.profile.name,
            "engines": dataclasses.asdict(self.serving),
            "schedulers": [policy.to_json() for policy in self.policies.values()],
            "routers": [find_router(text).to_json() for text in self.routers],
            "scalers": [find_scaler(text).to_json() for text in self.scalers],
            "incidents": list(self.incidents),
            "requests": self.requests_per_run,
            "seeds": self.seeds,
            "rate_per_s_of_load": {str(load): rate for load, rate in self.rate_of_load.items()},
            "saturation_rate_per_s": self.saturation_rate_per_s,
            "versions": versions(),
            "code": code_digests(
                [policy for contender in self.contenders.values() for policy in contender.policies], self.deployment
            ),
            "deployment": deployment_digest(self.deployment),
            "workloads": {f"load {load!r}, seed {seed}": digest for (load, seed), digest in self._digests.items()},
        }

    @functools.cached_property
    def _digests(self) -> dict[tuple[float, int], str]:
        return {key: workload.digest for key, workload in self.workloads.items()}

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity, so that the same comparison finds its results again."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:8]
        return Path("results") / f"compare-{Path(self.trace).stem}-{digest}"

    def run(self, cell: Cell) -> Row:
        """The row of a cell."""
        key = cell.load, cell.seed
        result = Simulation(self.scenario(*key, self.contenders[cell.scheduler])).run()
        return {
            **cell._asdict(),
            "rate_per_s": self.rate_of_load[cell.load],
            "workload": self._digests[key],
            "reroutes": result.summary["reroutes"],
            **figures(result),
            **class_figures(result),
        }

    def row_problem(self, row: Row) -> str | None:
        """What is wrong with a row that should be one of this comparison's; None if nothing is."""
        values: list[Any] = [row.get(field) for field in Cell._fields]
        cell = Cell(*values)
        if cell not in self.cells:
            return f"{cell} is not part of this comparison"
        if row.get("workload") != self._digests[cell.load, cell.seed]:
            return f"the workload of {cell} was another"
        bad = [name for name in FIGURES if not isinstance(row.get(name, ""), int | float | None)]
        return f"{cell} has no number for {', '.join(bad)}" if bad else None


def run_comparison(
    comparison: Comparison,
    directory: str | Path,
    progress: Progress = lambda done, cells: None,
    *,
    jobs: int = 1,
    runner: Runner | None = None,
    fresh: bool = False,
) -> pd.DataFrame:
    """Run what is not done yet and return one row a cell, in the order of `comparison.cells`.

    directory: rows are kept in its `cells.jsonl` as they come. When that holds rows of the same comparison they
    are not run again; fresh: they are. jobs: runs at a time, in threads of this process; runner: where they are done
    instead. The results are the same however many, and wherever.

    Raises ExperimentError when the directory holds another comparison, and as `Comparison` does. An interrupt
    (KeyboardInterrupt) ends it when the runs that are under way are done, and leaves the rows.
    """
    import pandas as pd

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rows = kept_rows(
        Ledger(directory / CELLS_FILE, comparison.identity, comparison.row_problem, fresh),
        comparison.cells, cell_of, comparison.run, progress, runner or ThreadRunner(jobs),
        prepare=lambda: compile_kernels(comparison),
    )  # fmt: skip
    return pd.DataFrame(rows)


def cell_of(row: Row) -> Cell:
    return Cell(*(row[field] for field in Cell._fields))


def compile_kernels(comparison: Comparison) -> None:
    """Run each contender once on two requests: kernels are compiled here, in one thread, before the work."""
    for contender in comparison.contenders.values():
        workload = Workload.from_columns({"arrival_s": [0.0, 0.0], "prompt_tokens": [1, 1], "output_tokens": [2, 2]})
        Simulation(
            Scenario(
                workload,
                comparison.deployment_of(contender),
                contender.scheduler,
                router=contender.router,
                scaler=contender.scaler,
            )
        ).run()

"""A comparison: schedulers x routers x scalers x loads (or clients) x seeds; of a seed all serve the same requests."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.evaluation.candidates import Candidate
from servegym.evaluation.compared import DEFAULTS, Compared
from servegym.evaluation.figures import FIGURES, class_figures, figures
from servegym.evaluation.identity import (
    code_digests,
    deployment_digest,
    document_digest,
    figures_digests,
    parameters_of,
    versions,
)
from servegym.evaluation.ledger import Row
from servegym.evaluation.measures import CLIENTS, COST, ENGINE_HOURS
from servegym.evaluation.repeats import Repeats, repeats_of, windows_of
from servegym.scenarios.building import front_end_in, scenario_of, workload_of
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.values import plain
from servegym.simulator.inputs.costs import S_PER_HOUR
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation

WINDOW_BY_SEED = DEFAULTS["window"]
COSTS = (COST.column, "cost_per_million_tokens", "energy_kwh")  # where they are known


class Cell(NamedTuple):
    """One run of a comparison. scheduler: its label, with the router's and scaler's where several are compared. point:
    the load, or the number of clients."""

    scheduler: str
    point: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Comparison(Compared):
    """Runs of a spec at each of its loads, rates or numbers of clients, under each of its schedulers, routers, scalers.

    Of a file each seed has a window of its own, as far as there is room for windows that do not overlap; where all
    seeds have the same run there is one (`repeats`).
    """

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """All runs; those of one workload are neighbours."""
        return [
            Cell(scheduler, point, seed)
            for point in self.points
            for seed in self.seeds_of(point)
            for scheduler in self.candidates
        ]

    def asked_seeds(self, point: float) -> range:
        return range(self.seeds)

    def seeds_of(self, point: float) -> range:
        """The seeds with runs that differ."""
        return self.asked_seeds(point)[: self.repeats.runs]

    @property
    def has_windows(self) -> bool:
        """Whether the seed chooses which requests of a file are served."""
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
        one = self.spec_of(candidate)
        if self.axis == CLIENTS:
            one = one.with_values({CLIENTS: point})
        return scenario_of(one, self.workloads[point, seed], deployment_of(one), seed)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Provenance of the first workload: repairs to the trace, and what the recipe changed for this device."""
        return next(iter(self.workloads.values())).provenance

    @property
    def title(self) -> str:
        """A title of one line: what is compared."""
        return f"{self.setting}: {self.repeats.times(f'{self.requests_per_run} requests')}"

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything on which the results depend: comparisons with the same identity have the same results."""
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
            "code": code_digests(self._all_policies, self.deployment),
            "parameters": parameters_of(self._all_policies, self.deployment),
            "figures": figures_digests(self.gain),
            "deployment": deployment_digest(self.deployment),
            "workloads": {
                f"{self.axis} {point!r}, seed {seed}": digest for (point, seed), digest in self._digests.items()
            },
        }

    @property
    def _all_policies(self) -> list[Policy]:
        return [policy for candidate in self.candidates.values() for policy in candidate.policies]

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
        """The default folder of this identity, in which the same comparison finds its results again."""
        return Path("results") / f"compare-{Path(self.trace).stem}-{document_digest(self.identity)}"

    def run(self, cell: Cell) -> Row:
        key = cell.point, cell.seed
        result = Simulation(self.scenario(*key, self.candidates[cell.scheduler])).run()
        rate = {} if self.axis == CLIENTS else {"rate_per_s": self.rate_of_load[cell.point]}
        costs = {ENGINE_HOURS.column: result.summary["cost_engine_s"] / S_PER_HOUR} if self.scalers else {}
        return {
            "scheduler": cell.scheduler,
            self.axis: cell.point,
            "seed": cell.seed,
            **rate,
            "workload": self._digests[key],
            "reroutes": result.summary["reroutes"],
            **figures(result),
            **class_figures(result),
            **costs,
            **{name: result.summary[name] for name in COSTS if name in result.summary},
        }

    def row_problem(self, row: Row) -> str | None:
        """Describe what is wrong with a row of this comparison; None if nothing is."""
        values: list[Any] = [row.get(field) for field in ("scheduler", self.axis, "seed")]
        cell = Cell(*values)
        if cell not in self.cells:
            return f"{cell} is not part of this comparison"
        if row.get("workload") != self._digests[cell.point, cell.seed]:
            return f"the workload of {cell} was another"
        bad = [name for name in FIGURES if not isinstance(row.get(name, ""), int | float | None)]
        return f"{cell} has no number for {', '.join(bad)}" if bad else None

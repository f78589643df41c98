"""A part of an evaluation: a comparison on one trace and device, whose cells have seeds of their own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from servegym.experiments.comparison import Cell, Comparison
from servegym.experiments.contenders import Contender
from servegym.simulator.workload import Workload
from servegym.traces.workloads import build_workload


@dataclasses.dataclass(frozen=True)
class Part(Comparison):
    """A `Comparison` in which each load has seeds that no other has: its runs are independent of theirs.

    (The seeds of `Comparison` give every load the same requests, and an interval over cells would count them twice.)

    seeds: of each load. first_seed: of the first load; they are numbered on through the loads in order.
    entrants: what is compared, by the label it has in tables: of `Evaluation.contenders`.
    """

    first_seed: int = 0
    entrants: Mapping[str, Contender] = dataclasses.field(default_factory=dict)

    @property
    def contenders(self) -> dict[str, Contender]:
        return dict(self.entrants)

    def seeds_of(self, load: float) -> range:
        first = self.first_seed + list(self.rate_of_load).index(load) * self.seeds
        return range(first, first + self.seeds)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        entrants = {
            label: {role: policy.to_json() for role, policy in contender.roles.items()}
            for label, contender in self.entrants.items()
        }
        return {**super().identity, "entrants": entrants}

    @functools.cached_property
    def cells(self) -> list[Cell]:
        return [
            Cell(label, load, seed)
            for load in self.rate_of_load
            for seed in self.seeds_of(load)
            for label in self.entrants
        ]

    @functools.cached_property
    def workloads(self) -> dict[tuple[float, int], Workload]:
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
            for seed in self.seeds_of(load)
        }
        self.serving.check_serves(next(iter(workloads.values())))
        return workloads

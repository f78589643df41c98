"""The instances of a panel: the runs that every candidate of a study serves, so that all are compared on the same
requests (common random numbers).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from servegym.baselines import registry
from servegym.errors import TuningError
from servegym.evaluation.candidates import ROUTER, Candidate
from servegym.evaluation.comparing import serve_two
from servegym.evaluation.figures import figures
from servegym.evaluation.identity import code_digests, deployment_digest
from servegym.evaluation.panels.panel import Panel
from servegym.evaluation.panels.part import Part, parts_of
from servegym.scenarios.building import front_end_in
from servegym.scenarios.fleets import DECODE_SCHEDULER
from servegym.scenarios.values import fixed, plain
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.studies.config import FIGURES, StudyConfig

Policies = Mapping[str, Policy]  # by role: scheduler, decode_scheduler, router, scaler
Outcome = dict[str, float | None]  # of an instance: the figures of `FIGURES`


class Instance(NamedTuple):
    """One run. seed: of its requests; no other instance of a panel has it."""

    trace: str
    device: str
    load: float
    seed: int


class Job(NamedTuple):
    """A run for a runner: an instance of a panel, under these policies. It can be sent to another process."""

    panel: Panel
    instance: int
    policies: dict[str, Policy]


class Instances:
    """The instances of a panel, made once, in the order of its traces, devices, loads and seeds."""

    def __init__(self, panel: Panel):
        self.panel = panel
        self.parts = parts_of(panel, panel.spec, {})
        self.all: list[Instance] = []
        self._places: list[tuple[Part, float, int]] = []
        for part in self.parts:
            for load in part.loads:
                for seed in part.seeds_of(load):
                    self.all.append(Instance(part.trace_name, part.profile.name, load, seed))
                    self._places.append((part, load, seed))

    def __len__(self) -> int:
        return len(self.all)

    def workload(self, index: int) -> Workload:
        part, load, seed = self._places[index]
        return part.workloads[load, seed]

    def scenario(self, index: int, policies: Policies) -> Scenario:
        """Make the scenario of an instance's run."""
        part, load, seed = self._places[index]
        return part.scenario(load, seed, candidate_of(part, policies))

    def run(self, index: int, policies: Policies) -> Outcome:
        """Run an instance; returns its figures."""
        found = figures(Simulation(self.scenario(index, policies)).run())
        return {name: None if found[name] is None else float(found[name] or 0.0) for name in FIGURES}

    def compile(self, policies: Policies) -> None:
        """Run two requests, so that kernels are compiled here, in one thread, before the work."""
        for part in self.parts:
            serve_two(part.spec_of(candidate_of(part, policies)))

    def fact(self, role: str, name: str) -> float:
        """Compute a fact that a default depends on: the median over the instances, for engines of the role's pool."""
        values = []
        for index, (part, _, _) in enumerate(self._places):
            pools = part.deployment.pools
            pool = pools[-1] if role == "decode_scheduler" else pools[0]
            scenario = Scenario(self.workload(index), part.deployment, registry.scheduler("vllm-fcfs"))
            values.append(scenario.facts_of(pool)(name))
        return statistics.median_low(values)

    def identity(self, policies: Policies) -> dict[str, Any]:
        """Collect everything the figures of a candidate depend on, except its parameters."""
        return {
            "panel": self.panel.to_json(),
            "workloads": [self.workload(index).digest for index in range(len(self))],
            "deployments": [deployment_digest(part.deployment) for part in self.parts],
            "front_ends": [plain(front_end_in(part.spec)) for part in self.parts],
            "code": code_digests(policies.values(), self.parts[0].deployment),
        }


def candidate_of(part: Part, policies: Policies) -> Candidate:
    """Make a candidate of policies by role; without a router requests go to engines in turn."""
    router = policies.get("router") or registry.router(ROUTER)
    return Candidate(policies["scheduler"], router, policies.get("scaler"), policies.get("decode_scheduler"))


@functools.lru_cache(maxsize=8)
def instances_of(panel: Panel) -> Instances:
    """Make the instances of a panel, once in a process."""
    return Instances(panel)


def run_job(job: Job) -> Outcome:
    """Run a job; called by a runner in this process or in another."""
    return instances_of(job.panel).run(job.instance, job.policies)


def find_policies(panel: Panel, study: StudyConfig) -> dict[str, Policy]:
    """Find the policies of a study, by role. Raises PolicyError for unknown ones, TuningError for a role without
    engines."""
    spec = panel.spec
    disaggregated = spec.fleet.is_disaggregated
    many = spec.fleet.total > 1

    def named(role: str) -> Any:
        return fixed(role, spec[role])

    if study.decode_scheduler is not None and not disaggregated:
        raise TuningError("a scheduler of decode engines is given, and the panel has none; add prefill and decode")
    if study.router is not None and not many:
        raise TuningError(f"router {study.router} is given, and the panel has one engine; add engines")
    policies = {"scheduler": registry.scheduler(study.scheduler or named("scheduler"))}
    if disaggregated:
        decoding = study.decode_scheduler or named("decode_scheduler") or DECODE_SCHEDULER
        policies["decode_scheduler"] = registry.decode_scheduler(decoding)
    if many:
        policies["router"] = registry.router(study.router or named("router") or ROUTER)
    scaler = study.scaler or named("scaler")
    if scaler is not None:
        policies["scaler"] = registry.scaler(scaler)
    return policies

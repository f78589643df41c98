"""Scenarios: all that determines a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from servegym.errors import DeploymentError, PredictorError, WorkloadError
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment, EstimatorModel
from servegym.simulator.inputs.device_steps import step_tokens
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records import types as layout


@dataclasses.dataclass(frozen=True)
class Scenario:
    """All that determines a run.

    until_s: the simulation stops at this time (inf: at the end of the workload).
    disturbance: noise and drift of the device. correction: online correction of the estimator; None: none.
    predictor: in front of the queues; None: urgency and predicted lengths are those of the workload, without delay.
    router: chooses the engine of each request; None: request i goes to engine i mod n.
    scaler: decides tiers and roles of engines; None: they do not change, and all are in service.
    incidents: engines that fail, return, or are drained.
    clients: most sessions under way; further ones wait to begin. A request in no session counts as one. None: no limit.
    max_concurrency: most unfinished requests; further ones wait to be sent. None: no limit.
    front_end: latencies between clients and engines; None: none.
    draft_seed: seed of which drafts are accepted, with speculative decoding.
    """

    workload: Workload
    deployment: Deployment | Cluster
    scheduler: Policy
    gain: Gain = dataclasses.field(default_factory=Gain)
    until_s: float = np.inf
    disturbance: Disturbance = dataclasses.field(default_factory=Disturbance)
    correction: Correction | None = None
    predictor: Predictor | None = None
    router: Policy | None = None
    scaler: Policy | None = None
    incidents: tuple[Incident, ...] = ()
    clients: int | None = None
    max_concurrency: int | None = None
    front_end: FrontEnd | None = None
    draft_seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.deployment, Deployment) and self.deployment.role != "both":
            name, role = self.deployment.name, self.deployment.role
            raise DeploymentError(f"{name}: a {role} pool should be part of a Cluster, with pools of the other role")
        for given in (self.scheduler, self.router, self.scaler, *(pool.scheduler for pool in self.deployment.pools)):
            if given is not None:
                given.check_uses()
        if any(pool.async_scheduling for pool in self.deployment.pools):
            self._check_ahead()
        for pool in self.deployment.pools:
            policy = pool.scheduler or self.scheduler
            if pool.lockstep > 1 and policy.state.tasks:
                raise DeploymentError(
                    f"{pool.name}: {policy.label} suspends batches, and engines in lockstep end theirs together; leave "
                    "out one"
                )
        if not self.until_s >= 0:
            raise DeploymentError(f"until_s is {self.until_s}; it should be a time of 0 or more")
        for name in ("clients", "max_concurrency"):
            most = getattr(self, name)
            if most is not None and not (isinstance(most, int | np.integer) and most >= 1):
                raise WorkloadError(f"{name} is {most!r}; it should be a whole number of 1 or more")
        delayed = self.front_end is not None and self.front_end.delays_requests
        waits = self.predictor is not None and getattr(self.predictor, "takes_time", False)
        if waits and (self.arrivals_depend or delayed):
            raise PredictorError(
                "a predictor that takes time, or waits for a full batch, needs arrivals that are known beforehand; "
                f"those {'behind a front end' if delayed else 'of sessions, clients and max_concurrency'} are not"
            )

    def _check_ahead(self) -> None:
        if self.takes_back:
            raise DeploymentError(
                "async_scheduling is not simulated where requests are taken back from engines; leave it out, or the "
                "incidents, the scaler, or the router that moves engines"
            )
        for pool in self.deployment.pools:
            policy = pool.scheduler or self.scheduler
            if pool.async_scheduling and policy.state.tasks:
                raise DeploymentError(
                    f"{pool.name}: {policy.label} suspends batches, and with async_scheduling the next is formed "
                    "already; leave out one"
                )

    @property
    def arrivals_depend(self) -> bool:
        """Whether arrivals depend on completions: by turns of sessions, or limits of sessions or requests under way."""
        return not (self.workload.turns is None and self.clients is None and self.max_concurrency is None)

    @property
    def takes_back(self) -> bool:
        """Whether requests can be taken back from the engines to which they were sent."""
        moves = self.scaler is not None or (self.router is not None and self.router.moves_engines)
        return moves or len(self.incidents) > 0

    @property
    def check_interval_s(self) -> float:
        """Time between the scaler's decisions; 0: there is none, as with a single engine."""
        if self.scaler is None or sum(pool.engines for pool in self.deployment.pools) == 1:
            return 0.0
        return float(self.scaler.values(self.facts_of(self.deployment.pools[0])).get("interval_s", 0.0))

    def fact(self, name: str) -> float:
        """Return a fact that a default may depend on (`policies.Fact`), for engines of the first pool."""
        return self.facts_of(self.deployment.pools[0])(name)

    def facts_of(self, pool: Deployment) -> Callable[[str], float]:
        """Return `fact` for the engines of a pool."""

        def fact(name: str) -> float:
            if name == "min_tpot_slo_s":
                return float(self.workload.table["tpot_slo_s"].min())
            if name == "profiled_token_budget":
                return float(profiled_token_budget(self.workload, pool.estimator))
            if name == "step_tokens":
                return float(step_tokens(pool.device))
            raise KeyError(name)

        return fact


def profiled_token_budget(workload: Workload, estimator: EstimatorModel) -> int:
    """Return the most prefill tokens whose batch is estimated to take at most the smallest TPOT SLO.

    It is a multiple of 16, at least 16. Half the mean prompt counts as cached, as in Sarathi-Serve's profiling.
    """
    cached = float(workload.table["prompt_tokens"].mean()) / 2
    return token_budget_within(float(workload.table["tpot_slo_s"].min()), cached, estimator)


def token_budget_within(slo_s: float, cached: float, estimator: EstimatorModel) -> int:
    """Return the most prefill tokens, a multiple of 16, whose batch is estimated to take at most slo_s.

    cached: tokens that count as cached.
    """

    def within(steps: int) -> bool:
        batch = np.zeros(1, layout.BATCH)[0]
        batch.prefill_requests = 1
        batch.prefill_tokens = batch.longest_prefill_tokens = tokens = 16.0 * steps
        batch.prefill_tokens_squared = tokens * tokens
        batch.prefill_tokens_cached = tokens * cached
        batch.prefill_cached_tokens = cached
        return estimator.batch_s(batch, estimator.coefficients) <= slo_s

    low, high = 1, 2**16
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return 16 * low

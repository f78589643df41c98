"""A simulation: a workload on a deployment under a scheduler, run to the end or from decision to decision."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING

import numpy as np

from servegym.simulator import types as layout
from servegym.simulator.deployment import Deployment
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.errors import DeploymentError
from servegym.simulator.gains import Gain
from servegym.simulator.loop import BAD_DURATION, DECISION, DONE, PAUSED, QUEUE_FULL, TIMELINE_FULL, advance
from servegym.simulator.memory import empty_blocks
from servegym.simulator.policies import Policy
from servegym.simulator.results import Result
from servegym.simulator.signatures import Estimator, Functions, Run, StateTables, state_view
from servegym.simulator.workload import FIELDS, Workload

if TYPE_CHECKING:
    from servegym.simulator.predictors import Predictor

FIRST_CAPACITY = 256  # of an engine's queue; doubled whenever it is full


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Everything that determines a run.

    until_s: nothing that happens after this time is simulated (inf: to the end).
    disturbance: noise and drift of the device. correction: of the estimator by what iterations took; None: none.
    predictor: in front of the queues; None: urgency and predicted lengths are those of the workload, at once.
    """

    workload: Workload
    deployment: Deployment
    scheduler: Policy
    gain: Gain = dataclasses.field(default_factory=Gain)
    until_s: float = np.inf
    disturbance: Disturbance = dataclasses.field(default_factory=Disturbance)
    correction: Correction | None = None
    predictor: Predictor | None = None

    def __post_init__(self) -> None:
        if not self.until_s >= 0:
            raise DeploymentError(f"until_s is {self.until_s}; it should be a time of 0 or more")

    def fact(self, name: str) -> float:
        """A fact that a policy's default may depend on; see `policies.Fact`."""
        if name == "min_tpot_slo_s":
            return float(self.workload.table["tpot_slo_s"].min())
        if name == "profiled_token_budget":
            return float(self.profiled_token_budget)
        raise KeyError(name)

    @functools.cached_property
    def profiled_token_budget(self) -> int:
        """The largest number of prefill tokens, in steps of 16 from 16, whose estimated batch time is within the
        smallest TPOT SLO, with half the mean prompt cached (Sarathi-Serve profiles its budget so)."""
        slo_s, cached = self.fact("min_tpot_slo_s"), float(self.workload.table["prompt_tokens"].mean()) / 2
        estimator = self.deployment.estimator

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


class Simulation:
    """A scenario made ready to run, as often as one likes.

        simulation = Simulation(scenario)
        result = simulation.run()                      # to the end, at full speed

        simulation.reset()
        while simulation.step():                       # stops before each batch is formed
            simulation.arrays.parameters[0] = 2.0      # what a controller may change
        result = simulation.result()

    Both ways give the same bytes for the same decisions. Raises DeploymentError if a request does not fit
    the KV memory.
    """

    def __init__(self, scenario: Scenario, record_timeline: bool = False):
        self.scenario = scenario
        self.record_timeline = record_timeline
        deployment, policy = scenario.deployment, scenario.scheduler
        deployment.check_fits(scenario.workload)
        self.functions = Functions(
            policy.function.value, policy.victims.value, deployment.device.batch_s.value, scenario.gain.function.value
        )
        self.estimator = Estimator(
            deployment.estimator.batch_s.value, deployment.estimator.exec_s.value,
            np.ascontiguousarray(deployment.estimator.coefficients, dtype="f8"), np.zeros(2, layout.BATCH),
        )  # fmt: skip
        self.parameters = policy.numbers(scenario.fact)
        self.predictions = None if scenario.predictor is None else scenario.predictor.predict(scenario.workload)
        self.reset()

    def reset(self) -> None:
        """Back to the start of the scenario."""
        scenario, deployment = self.scenario, self.scenario.deployment
        n, engines = len(scenario.workload), deployment.engines
        capacity = min(n, FIRST_CAPACITY)
        clock = np.zeros(1, layout.CLOCK)
        clock[0].deciding_engine = -1
        clock[0].recording = self.record_timeline
        clock[0].buffered_first_token = scenario.gain.buffered_first_token
        self.arrays = Run(
            clock=clock,
            requests=self._requests(),
            outcomes=self._outcomes(),
            engines=self._engines(),
            queues=np.zeros((engines, capacity), "i4"),
            entries=np.zeros((engines, capacity), layout.ENTRY),
            sums=np.zeros(2, layout.BATCH),
            blocks=empty_blocks(engines, deployment.total_blocks),
            events=np.zeros(engines, layout.EVENT),
            packing=np.zeros(1, layout.PACKING),
            limits=np.zeros(1, layout.LIMITS),
            plan=np.zeros(capacity, layout.PLAN),
            order=np.zeros(capacity, "i4"),
            timeline=np.zeros(4096 if self.record_timeline else 1, layout.TIMELINE),
            tbt_histogram=np.zeros(layout.TBT_BINS, "i8"),
            parameters=self.parameters.copy(),
            device=np.tile(np.asarray(deployment.device.coefficients, dtype="f8"), (engines, 1)),
            state=self._state(),
            estimator=self.estimator._replace(
                coefficients=self.estimator.coefficients.copy(), scratch=np.zeros(2, layout.BATCH)
            ),
            fitted=self.estimator.coefficients.copy(),
            disturbance=scenario.disturbance.to_array(),
            correction=np.zeros(1, layout.CORRECTION)
            if scenario.correction is None
            else scenario.correction.to_array(),
        )
        self.wall_s = 0.0
        self._ended = False

    def _requests(self) -> np.ndarray:
        table = self.scenario.workload.table
        requests = aligned_zeros(len(table), layout.REQUEST)
        for field in set(layout.REQUEST.names or ()) & set(FIELDS):
            requests[field] = table[field]
        batch_class = np.isfinite(table["ttlt_slo_s"])
        requests["first_deadline_s"] = table["arrival_s"] + np.where(
            batch_class, table["ttlt_slo_s"], table["ttft_slo_s"]
        )
        requests["token_interval_s"] = np.where(batch_class, 0.0, table["tpot_slo_s"])
        requests["first_token_gain"], requests["decode_token_gain"] = self.scenario.gain.token_gains(table)
        # A table by client or by application has no rows for numbers that nobody has.
        for field in ("client", "application"):
            requests[field] = np.unique(table[field], return_inverse=True)[1]
        if self.predictions is not None:
            requests["urgency"] = self.predictions.urgency
            requests["predicted_output_tokens"] = self.predictions.predicted_output_tokens
        requests["last_block"] = -1
        requests["engine"] = -1
        return requests

    def _outcomes(self) -> np.ndarray:
        outcomes = np.zeros(len(self.scenario.workload), layout.OUTCOME)
        table = self.scenario.workload.table
        outcomes["output_tokens"] = table["output_tokens"]
        outcomes["ready_s"] = table["arrival_s"] if self.predictions is None else self.predictions.ready_s
        for field in ("admitted_s", "first_token_s", "last_token_s", "finish_s"):
            outcomes[field] = np.nan
        return outcomes

    def _engines(self) -> np.ndarray:
        deployment = self.scenario.deployment
        engines = np.zeros(deployment.engines, layout.ENGINE)
        engines["index"] = np.arange(deployment.engines)
        engines["block_tokens"] = deployment.block_tokens
        engines["total_blocks"] = engines["free_blocks"] = deployment.total_blocks
        engines["estimate_scale"] = engines["beta"] = 1.0
        engines["watermark_blocks"] = int(deployment.watermark * deployment.total_blocks)
        if deployment.host is not None:
            engines["host_blocks"] = engines["free_host_blocks"] = deployment.host.blocks
            engines["load_s_per_token"] = deployment.host.load_s_per_token
            engines["save_s_per_token"] = deployment.host.save_s_per_token
        return engines

    def _state(self) -> StateTables:
        fields, table, engines = self.scenario.scheduler.state, self.scenario.workload.table, len(self._engines())

        def different(field: str) -> int:
            return len(np.unique(table[field]))

        return StateTables(
            requests=np.zeros((len(table) if fields.request else 0, len(fields.request))),
            engines=np.zeros((engines if fields.engine else 0, len(fields.engine))),
            clients=np.zeros((engines, different("client") if fields.client else 0, len(fields.client))),
            by_client=np.zeros((engines, different("client") if fields.by_client else 0), layout.GROUP),
            by_application=np.zeros((engines, different("application") if fields.by_application else 0), layout.GROUP),
        )

    def run(self) -> Result:
        """Run to the end of the scenario, from the start or from where stepping stopped."""
        self._advance(stop_at_batches=False)
        return self.result()

    def step(self) -> bool:
        """Run on until a batch is about to be formed; False when the scenario has ended instead.

        The engine that decides is `arrays.clock[0].deciding_engine`.
        """
        return self._advance(stop_at_batches=True) == DECISION

    def _advance(self, stop_at_batches: bool) -> int:
        run_on = advance.entry  # read from the cache, or compiled, before the clock starts
        begin = time.perf_counter()
        while True:
            status = run_on(self.arrays, self.functions, stop_at_batches, self.scenario.until_s)
            if status == QUEUE_FULL:
                self._grow_queues()
            elif status == TIMELINE_FULL:
                self._grow_timeline()
            elif status == BAD_DURATION:
                raise DeploymentError(
                    f"{self.scenario.deployment.name}: at {self.arrays.clock[0].now_s:g} s the device model gave a "
                    "batch a duration that is negative or not finite; it should be a time, of 0 s or more"
                )
            else:
                assert status in (DONE, DECISION, PAUSED)
                self.wall_s += time.perf_counter() - begin
                self._ended = status != DECISION
                return int(status)

    def _grow_queues(self) -> None:
        arrays = self.arrays
        capacity = 2 * arrays.queues.shape[1]
        self.arrays = arrays._replace(
            queues=longer(arrays.queues, capacity, axis=1),
            entries=longer(arrays.entries, capacity, axis=1),
            plan=longer(arrays.plan, capacity),
            order=longer(arrays.order, capacity),
        )

    def _grow_timeline(self) -> None:
        self.arrays = self.arrays._replace(timeline=longer(self.arrays.timeline, 2 * len(self.arrays.timeline)))

    def result(self) -> Result:
        """What has happened so far. It stays as it is when the simulation goes on."""
        arrays = self.arrays
        if not self._ended:
            changing = ("clock", "requests", "outcomes", "engines", "timeline", "tbt_histogram")
            arrays = arrays._replace(**{name: getattr(arrays, name).copy() for name in changing})
        return Result(self.scenario, arrays, self.wall_s)


def plan_of(policy: Policy, parameters: np.ndarray, arrays: Run, engine: int, now_s: float) -> np.ndarray:
    """PLAN[queue]: how a scheduler would rank the requests of an engine now. The run stays as it is.

    parameters: float64[...], as the policy's function takes them (`Policy.numbers`).
    """
    queue = arrays.queues[engine][: arrays.engines[engine].queue_length]
    plan, limits = np.zeros(len(queue), layout.PLAN), np.zeros(1, layout.LIMITS)
    state = state_view(StateTables(*(table.copy() for table in arrays.state)), engine)
    estimator = arrays.estimator._replace(scratch=np.zeros(2, layout.BATCH))
    policy.function.entry(
        now_s, arrays.engines[engine], arrays.requests, queue, state, parameters, estimator, plan, limits[0]
    )
    return plan


def aligned_zeros(length: int, dtype: np.dtype, alignment: int = 64) -> np.ndarray:
    """Zeros that start at a cache line."""
    raw = np.zeros(length * dtype.itemsize + alignment, "u1")
    start = -raw.ctypes.data % alignment
    return raw[start : start + length * dtype.itemsize].view(dtype)


def longer(array: np.ndarray, length: int, axis: int = 0) -> np.ndarray:
    """A copy with zeros added at the end of an axis."""
    shape = list(array.shape)
    shape[axis] = length
    copy = np.zeros(shape, array.dtype)
    copy[tuple(slice(0, size) for size in array.shape)] = array
    return copy

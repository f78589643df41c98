"""Simulations: a scenario run to the end, or from decision to decision."""

from __future__ import annotations

import copy
import time

import numpy as np

from servegym.errors import ServegymError
from servegym.simulator.batching.ordering import leave_out_unlisted
from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.compilation.failures import Failure, call
from servegym.simulator.compilation.interruption import stop_if_asked
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import settings_of
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import copied, longer
from servegym.simulator.records.signatures import Estimator, RouterContext, SchedulerContext, StateTables, state_view
from servegym.simulator.records.state import RouterState, SimulationState
from servegym.simulator.records.statuses import (
    AT_BATCHES,
    DECISION,
    DONE,
    PAUSED,
    QUEUE_FULL,
    SIGNALS_FULL,
    TIMELINE_FULL,
    YIELDED,
)
from servegym.simulator.runs.arrays import fresh_router_state, fresh_simulation_state, functions_of
from servegym.simulator.runs.diagnosis import Stopped, error_of, policy_functions
from servegym.simulator.runs.loops import loop_of
from servegym.simulator.runs.parking import ParkedRun
from servegym.simulator.runs.results import Result


class Simulation:
    """A simulation of a scenario, which can be run repeatedly.

        simulation = Simulation(scenario)
        result = simulation.run()                      # to the end, at full speed

        simulation.reset()
        while simulation.step():                       # stops before each batch is formed
            simulation.arrays.parameters[0, 0] = 2.0   # what a controller may change
        result = simulation.result()

    Both ways give the same bytes for the same decisions. Raises DeploymentError if a request does not fit KV memory,
    and PolicyError if a policy cannot be compiled. Running raises PolicyError if a policy writes invalid values
    (`refusals`), or if a function of the scenario raises an exception.

    watched: keep `router_state.known.prefixes.sent` for the caller even if no policy reads it.
    """

    def __init__(self, scenario: Scenario, record_timeline: bool = False, watched: bool = False):
        self.scenario = scenario
        self.record_timeline = record_timeline
        deployment = scenario.deployment
        deployment.check_fits(scenario.workload, again=scenario.takes_back)
        self.settings = settings_of(scenario, watched)
        for name, function in policy_functions(self.settings):
            if not function.load():
                from servegym.simulator.policies.compile_errors import ensure_compiled

                ensure_compiled(name, function)
        self.functions = functions_of(scenario, self.settings)
        self.start: tuple[SimulationState, RouterState] | None = None  # set at the first reset
        self._parked_run: ParkedRun | None = None  # set at the first run
        self._begin(self._fresh())
        self.loop = loop_of(self.arrays, self.router_state)

    def reset(self) -> None:
        """Go back to the start of the scenario."""
        if self.start is None:
            self.start = self._fresh()
        arrays, router_state = self.start
        self._begin((copied(arrays), copied(router_state)))

    def _fresh(self) -> tuple[SimulationState, RouterState]:
        arrays = fresh_simulation_state(self.scenario, self.settings, self.record_timeline)
        return arrays, fresh_router_state(arrays, self.scenario, self.settings)

    def _begin(self, start: tuple[SimulationState, RouterState]) -> None:
        self.arrays, self.router_state = start
        self.failures: list[Failure] = []  # exceptions of the scenario's functions
        self.wall_s = 0.0
        self.ended = False

    def copy(self) -> Simulation:
        """Return an independent simulation at the same point of the same scenario."""
        other = copy.copy(self)
        other.arrays, other.router_state = copied(self.arrays), copied(self.router_state)
        other.failures, other._parked_run = list(self.failures), None
        return other

    def note_failure(self, failure: Failure) -> None:
        """Record an exception of a compiled function, which ends the run."""
        self.failures.append(failure)
        self.arrays.status[0].failed = 1

    def run(self) -> Result:
        """Run to the end of the scenario from where it stands, and return the result."""
        self._advance(stop_at=0)
        return self.result()

    def step(self) -> bool:
        """Run until a batch is about to be formed. Returns False if the scenario has ended instead.

        The engine that decides is `arrays.status[0].deciding_engine`.
        """
        return self.advance_to(AT_BATCHES)

    def advance_to(self, stop_at: int) -> bool:
        """Run until the next decision of some kinds (sum of statuses.AT_...). Returns False if there is none.

        The policy's decision is in `router_state.route` or `router_state.moves`, and can be changed there.
        """
        return self._advance(stop_at) == DECISION

    def _advance(self, stop_at: int) -> int:
        run_on = self.loop.entry  # compiled or loaded before the clock starts
        self.parked()
        while True:
            begin = time.perf_counter()
            reason = call(self.note_failure, run_on, self.parked(), stop_at, self.scenario.until_s)
            self.wall_s += time.perf_counter() - begin
            if self.failures:
                raise self._error(reason)
            if reason == YIELDED:
                stop_if_asked()
                continue
            if reason in (DONE, DECISION, PAUSED):
                self.ended = reason != DECISION
                return int(reason)
            self.make_room(reason)

    def parked(self) -> int:
        """Return the address of the parked run in its present state (parking.py)."""
        if self._parked_run is None:
            self._parked_run = ParkedRun()
        self._parked_run.park(self.arrays, self.router_state, self.functions)
        return self._parked_run.address

    def make_room(self, reason: int) -> None:
        """Lengthen the array that was too short, so that `advance` can be called again, or raise the error of `reason`.

        `arrays` and `router_state` are new tuples then.
        """
        if reason == QUEUE_FULL:
            capacity = 2 * self.arrays.queues.shape[1]
            self._lengthen(
                capacity=capacity,
                **({"tasks": capacity} if self.arrays.state.tasks.shape[1] else {}),
                **({"ahead": capacity} if self.router_state.running.shape[1] else {}),
            )
        elif reason == SIGNALS_FULL:
            self._lengthen(signals=2 * len(self.router_state.signals), kv_events=2 * len(self.router_state.kv_events))
        elif reason == TIMELINE_FULL:
            self._lengthen(timeline=2 * len(self.arrays.timeline))
        else:
            raise self._error(reason)

    def _error(self, reason: int) -> ServegymError:
        return error_of(Stopped(self.scenario, self.settings, self.arrays, self.router_state, self.failures), reason)

    def _lengthen(self, **sizes: int) -> None:
        self.arrays, self.router_state = longer(self.arrays, sizes), longer(self.router_state, sizes)

    def result(self) -> Result:
        """Return the result so far, which does not change when the simulation goes on."""
        arrays = self.arrays
        if not self.ended:
            changing = ("status", "requests", "outcomes", "engines", "timeline", "tbt_histogram")
            arrays = arrays._replace(**{name: getattr(arrays, name).copy() for name in changing})
        return Result(self.scenario, arrays, self.wall_s)

    def estimator_of(self, engine: int) -> Estimator:
        """Return the estimator of an engine's scheduler as it is now."""
        pool = self.arrays.engines[engine].pool
        return Estimator(
            self.functions.batch_s[pool],
            self.functions.exec_s[pool],
            self.arrays.estimate[engine].copy(),
            np.zeros(2, layout.BATCH),
        )

    def ranks_of(self, policy: Policy, parameters: np.ndarray, engine: int, now_s: float) -> np.ndarray:
        """Return RANK[queue]: how a scheduler would rank the requests of an engine now. The run is not changed.

        parameters: float64[...], as the policy's function takes them (`Policy.numbers`).
        """
        context = self.scheduler_context(engine, now_s)
        state = state_view(StateTables(*(table.copy() for table in self.arrays.state)), engine)
        scratch = np.zeros((policy.scratch.rows, len(context.queue)))
        context = context._replace(state=state, parameters=parameters, scratch=scratch)
        ranks, limits = np.zeros(len(context.queue), layout.RANK), np.zeros(1, layout.LIMITS)
        limits["listed"] = layout.NO_LIMIT
        policy.function.entry(context, ranks, limits[0])
        plain_function(leave_out_unlisted)(ranks, limits[0], len(ranks))
        return ranks

    def scheduler_context(self, engine: int, now_s: float) -> SchedulerContext:
        """Return the context of an engine's scheduler; its arrays are those of the run."""
        arrays = self.arrays
        return SchedulerContext(
            now_s,
            arrays.engines[engine],
            arrays.requests,
            arrays.queues[engine][: arrays.engines[engine].queue_length],
            state_view(arrays.state, engine),
            arrays.parameters[engine],
            self.estimator_of(engine),
            arrays.scratch,
        )

    def router_context(self, now_s: float) -> RouterContext:
        """Return the router's context; its arrays are those of the run."""
        arrays, router_state = self.arrays, self.router_state
        return RouterContext(
            now_s, arrays.requests, router_state.known, router_state.state, router_state.parameters,
            router_state.estimates, arrays.scratch,
        )  # fmt: skip

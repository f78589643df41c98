"""A simulation: a workload on a deployment under a scheduler, run to the end or from decision to decision."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from servegym.simulator import types as layout
from servegym.simulator.arrays import fresh_books, fresh_run, functions_of, longer, settings_of
from servegym.simulator.cluster import Cluster
from servegym.simulator.compilation import Compiled
from servegym.simulator.deployment import Deployment, EstimatorModel
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.errors import DeploymentError, PolicyError, ServegymError
from servegym.simulator.failures import Failure, call, culprit
from servegym.simulator.gains import Gain
from servegym.simulator.incidents import Incident
from servegym.simulator.loop import advance
from servegym.simulator.policies import Policy
from servegym.simulator.refusals import what_is_wrong, why_not
from servegym.simulator.results import Result
from servegym.simulator.signatures import Estimator, StateTables, state_view
from servegym.simulator.statuses import (
    AT_BATCHES,
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_MOVE,
    BAD_PLAN,
    BAD_ROUTE,
    BAD_TIME,
    DECISION,
    DONE,
    PAUSED,
    QUEUE_FULL,
    SIGNALS_FULL,
    THRASHING,
    TIMELINE_FULL,
    TOO_OFTEN,
)
from servegym.simulator.workload import Workload

if TYPE_CHECKING:
    from servegym.simulator.predictors import Predictor


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Everything that determines a run.

    until_s: nothing that happens after this time is simulated (inf: to the end).
    disturbance: noise and drift of the device. correction: of the estimator by what iterations took; None: none.
    predictor: in front of the queues; None: urgency and predicted lengths are those of the workload, at once.
    router: names the engine of each request; None: request i goes to engine i mod n.
    scaler: moves engines between tiers; None: they stay, and all are in service.
    incidents: engines that fail, return, or are drained.
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

    def __post_init__(self) -> None:
        if isinstance(self.deployment, Deployment) and self.deployment.role != "both":
            name, role = self.deployment.name, self.deployment.role
            raise DeploymentError(f"{name}: a {role} pool is part of a Cluster, which has the engines for the rest")
        if not self.until_s >= 0:
            raise DeploymentError(f"until_s is {self.until_s}; it should be a time of 0 or more")

    @property
    def takes_back(self) -> bool:
        """Whether requests can be taken back from the engines to which they were sent."""
        moves = self.scaler is not None or (self.router is not None and self.router.moves_engines)
        return moves or len(self.incidents) > 0

    def fact(self, name: str) -> float:
        """A fact that a policy's default may depend on (see `policies.Fact`), at the engines of the first pool."""
        return self.facts_of(self.deployment.pools[0])(name)

    def facts_of(self, pool: Deployment) -> Callable[[str], float]:
        """`fact` for the engines of a pool."""

        def fact(name: str) -> float:
            if name == "min_tpot_slo_s":
                return float(self.workload.table["tpot_slo_s"].min())
            if name == "profiled_token_budget":
                return float(profiled_token_budget(self.workload, pool.estimator))
            raise KeyError(name)

        return fact


def profiled_token_budget(workload: Workload, estimator: EstimatorModel) -> int:
    """The largest number of prefill tokens, in steps of 16 from 16, whose estimated batch time is within the
    smallest TPOT SLO, with half the mean prompt cached (Sarathi-Serve profiles its budget so)."""
    slo_s = float(workload.table["tpot_slo_s"].min())
    cached = float(workload.table["prompt_tokens"].mean()) / 2

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
            simulation.arrays.parameters[0, 0] = 2.0   # what a controller may change
        result = simulation.result()

    Both ways give the same bytes for the same decisions. Raises DeploymentError if a request does not fit
    the KV memory. Running raises PolicyError where a policy writes what is refused (`refusals`), or it, or another
    function of the scenario, raises an exception.
    """

    def __init__(self, scenario: Scenario, record_timeline: bool = False):
        self.scenario = scenario
        self.record_timeline = record_timeline
        deployment = scenario.deployment
        deployment.check_fits(scenario.workload, again=scenario.takes_back)
        self.settings = settings_of(scenario)
        self.functions = functions_of(scenario, self.settings)
        self.reset()

    def reset(self) -> None:
        """Back to the start of the scenario."""
        self.arrays = fresh_run(self.scenario, self.settings, self.record_timeline)
        self.books = fresh_books(self.arrays, self.scenario, self.settings)
        self.failures: list[Failure] = []  # what functions of the scenario have raised
        self.wall_s = 0.0
        self.ended = False

    def note_failure(self, failure: Failure) -> None:
        """A compiled function has raised an exception: the run is to end."""
        self.failures.append(failure)
        self.arrays.clock[0].failed = 1

    def run(self) -> Result:
        """Run to the end of the scenario, from the start or from where stepping stopped."""
        self._advance(stop_at=0)
        return self.result()

    def step(self) -> bool:
        """Run on until a batch is about to be formed; False when the scenario has ended instead.

        The engine that decides is `arrays.clock[0].deciding_engine`.
        """
        return self.advance_to(AT_BATCHES)

    def advance_to(self, stop_at: int) -> bool:
        """Run on until there is a decision of a kind (statuses.AT_..., added up); False when there is none any more.

        What has been decided about a route or a check is in `books.route` and `books.moves`, and can be changed there.
        """
        return self._advance(stop_at) == DECISION

    def _advance(self, stop_at: int) -> int:
        run_on = advance.entry  # read from the cache, or compiled, before the clock starts
        begin = time.perf_counter()
        while True:
            status = call(
                self.note_failure, run_on, self.arrays, self.books, self.functions, stop_at, self.scenario.until_s
            )
            if self.failures:
                raise self._error(status)
            if status in (DONE, DECISION, PAUSED):
                self.wall_s += time.perf_counter() - begin
                self.ended = status != DECISION
                return int(status)
            self.make_room(status)

    def make_room(self, status: int) -> None:
        """Make the array longer that was too short (`arrays` and `books` are new tuples then), so that `advance` can be
        called again; or raise what has gone wrong."""
        if status == QUEUE_FULL:
            self._grow_queues()
        elif status == SIGNALS_FULL:
            signals = self.books.signals
            self.books = self.books._replace(signals=longer(signals, 2 * len(signals)))
        elif status == TIMELINE_FULL:
            self._grow_timeline()
        else:
            raise self._error(status)

    def _error(self, status: int) -> ServegymError:
        """What has gone wrong, where, and what would be right."""
        where = f"{self.scenario.deployment.name}: at {self.arrays.clock[0].now_s:g} s"
        router, scaler, route = self.settings.router.label, self.settings.scaler.label, self.books.route[0]
        if self.failures:
            who = culprit(self.failures[0], self._named_functions())
            return PolicyError(f"{where} {who} failed: {self.failures[0]}")
        if status == BAD_PLAN:
            engine = self._starting_engine()
            n, label = engine.queue_length, self.settings.schedulers[engine.kind].label
            wrong = what_is_wrong(self.arrays.limits[0], self.arrays.plan[:n], self.arrays.queues[engine.index, :n])
            return PolicyError(f"{where} scheduler {label} {wrong}")
        if status in (BAD_DURATION, BAD_ESTIMATE):
            return DeploymentError(f"{where} {self._wrong_time(estimate=status == BAD_ESTIMATE)}")
        if status == BAD_TIME:
            return DeploymentError(
                f"{where} nothing more happens before {layout.LATEST_S:g} s, where a run ends: {self._next_thing()}"
            )
        if status == THRASHING:
            engine = self._starting_engine()
            policy = self.settings.schedulers[engine.kind].name
            return PolicyError(
                f"{where} engine {engine.index} ({self.settings.cluster.pools[engine.kind].name}) has computed "
                f"{layout.MOST_FILLINGS} times what its memory holds since a token came out: under scheduler {policy} "
                "requests take memory from each other again and again; it should leave one what it has until it has a "
                "token"
            )
        if status == TOO_OFTEN:
            clock = self.arrays.clock[0]
            return PolicyError(
                f"{where} scaler {scaler} is asked every {clock.interval_s:g} s, and would be more than "
                f"{layout.MOST_CHECKS:,} times before anything else happens: {self._next_thing()}; it should have a "
                "longer interval_s"
            )
        if status == BAD_ROUTE and route.engine >= 0 and route.tier >= 0 and not self.settings.router.moves_engines:
            return PolicyError(
                f"{where} router {router} moved engine {route.engine} to tier {route.tier}; a router that does so "
                "should be registered with moves_engines=True"
            )
        if status == BAD_ROUTE:
            r = self.arrays.clock[0].decided
            wrong = why_not(route, self.books.known.views, self.arrays.requests[r], len(self.settings.tiers))
            return PolicyError(
                f"{where} router {router} sent request {r} to engine {route.engine} (decode engine "
                f"{route.decode_engine}, line {route.line}, tier {route.tier}): {wrong}; it should name an engine that "
                "takes the request, or hold it in a line"
            )
        if status == BAD_MOVE:
            tiers, named = len(self.settings.tiers), self.books.moves["tier"]
            e = int(np.flatnonzero((named < -1) | (named >= tiers))[0])
            return PolicyError(
                f"{where} scaler {scaler} named tier {named[e]} for engine {e}, which there is not; tiers are -1 to "
                f"{tiers - 1}"
            )
        return PolicyError(
            f"{where} router {router} holds {self.arrays.clock[0].held} requests, and nothing more can happen; it "
            "should send a request to an engine that has nothing to do"
        )

    def _named_functions(self) -> list[tuple[str, Compiled]]:
        """The compiled functions that a run calls, under the names that a user knows them by."""
        settings, gain = self.settings, self.scenario.gain
        named = [(f"scheduler {policy.label}", function) for policy in settings.schedulers
                 for function in (policy.function, policy.victims, *(policy.halves or ()))]  # fmt: skip
        named += [(f"router {settings.router.label}", settings.router.function)]
        named += [(f"scaler {settings.scaler.label}", settings.scaler.function)]
        named += [(f"gain function {gain.name}", gain.function)]
        for pool in settings.cluster.pools:
            named += [(f"the device model of {pool.name}", pool.device.batch_s)]
            estimator = pool.estimator
            for function in (estimator.batch_s, estimator.exec_s, estimator.request_s):
                named += [(f"the estimator of {pool.name}", function)]
        return named
    def _wrong_time(self, estimate: bool) -> str:
        """What is wrong with the duration or the estimate of the batch that an engine is to start."""
        arrays = self.arrays
        engine, sums = self._starting_engine(), arrays.sums[0]
        pool, most = self.settings.cluster.pools[engine.kind], f"{layout.LATEST_S:g} s"
        requests = int(sums.prefill_requests + sums.decode_requests)
        batch = f"a batch of {requests} requests and {int(sums.prefill_tokens + sums.decode_requests)} tokens"
        where = f"engine {engine.index} ({pool.name}):"
        if estimate and not engine.estimate_scale < np.inf:
            return (
                f"{where} online correction multiplies the estimator by {engine.estimate_scale:g}; a device and its "
                "estimator should not be so far apart, fit the one to the other or leave out the correction"
            )
        if estimate:
            return (
                f"{where} the estimator, times {engine.estimate_scale:g}, says that {batch} takes "
                f"{engine.batch_estimate_s:g} s; it should say 0 to {most}"
            )
        model_s = pool.device.batch_s(sums, arrays.device[engine.index])
        return (
            f"{where} the device model says that {batch} takes {model_s:g} s, to which come noise, drift and "
            f"{engine.moving_s:g} s for moving KV; together it should be 0 to {most}"
        )

    def _starting_engine(self) -> np.record:
        """The engine that was to start an iteration."""
        return self.arrays.engines[self.arrays.due[self.arrays.clock[0].starting]]

    def _next_thing(self) -> str:
        """What would happen next, and when."""
        arrays, clock, incidents = self.arrays, self.arrays.clock[0], self.books.incidents
        coming: list[tuple[float, str]] = []
        if clock.events > 0:
            event = arrays.events[0]
            what = "the KV of request" if event.kind == layout.EVENT_KV_ARRIVAL else "an end of an iteration of engine"
            coming.append((float(event.time_s), f"{what} {event.index} comes"))
        if clock.next_arrival < len(arrays.requests):
            coming.append((float(arrays.outcomes[clock.next_arrival].ready_s), f"request {clock.next_arrival} comes"))
        if clock.next_incident < len(incidents):
            incident = incidents[clock.next_incident]
            kind = layout.INCIDENTS[incident.kind]
            coming.append((float(incident.time_s), f"the incident '{kind}' of engine {incident.engine} comes"))
        if not coming:
            return "all who are held wait for what engines have still to tell the router"
        time_s, what = min(coming)
        return f"{what} at {time_s:g} s"

    def _grow_queues(self) -> None:
        arrays = self.arrays
        capacity = 2 * arrays.queues.shape[1]
        self.arrays = arrays._replace(
            queues=longer(arrays.queues, capacity, axis=1),
            entries=longer(arrays.entries, capacity, axis=1),
            plan=longer(arrays.plan, capacity),
            order=longer(arrays.order, capacity),
        )
        known = self.books.known
        self.books = self.books._replace(
            known=known._replace(
                records=longer(known.records, capacity, axis=1), running=longer(known.running, capacity, axis=1)
            )
        )
        slots = arrays.state.tasks.shape[1]
        if slots:
            tasks = longer(arrays.state.tasks, capacity, axis=1)
            self.arrays = self.arrays._replace(state=arrays.state._replace(tasks=tasks))
            self.books = self.books._replace(tasks=longer(self.books.tasks, capacity, axis=1))

    def _grow_timeline(self) -> None:
        self.arrays = self.arrays._replace(timeline=longer(self.arrays.timeline, 2 * len(self.arrays.timeline)))

    def result(self) -> Result:
        """What has happened so far. It stays as it is when the simulation goes on."""
        arrays = self.arrays
        if not self.ended:
            changing = ("clock", "requests", "outcomes", "engines", "timeline", "tbt_histogram")
            arrays = arrays._replace(**{name: getattr(arrays, name).copy() for name in changing})
        return Result(self.scenario, arrays, self.wall_s)

    def estimator_of(self, engine: int) -> Estimator:
        """What the scheduler of an engine is handed as its estimator now."""
        kind = self.arrays.engines[engine].kind
        return Estimator(
            self.functions.batch_s[kind],
            self.functions.exec_s[kind],
            self.arrays.estimate[engine].copy(),
            np.zeros(2, layout.BATCH),
        )

    def plan_of(self, policy: Policy, parameters: np.ndarray, engine: int, now_s: float) -> np.ndarray:
        """PLAN[queue]: how a scheduler would rank the requests of an engine now. The run stays as it is.

        parameters: float64[...], as the policy's function takes them (`Policy.numbers`).
        """
        arrays = self.arrays
        queue = arrays.queues[engine][: arrays.engines[engine].queue_length]
        plan, limits = np.zeros(len(queue), layout.PLAN), np.zeros(1, layout.LIMITS)
        state = state_view(StateTables(*(table.copy() for table in arrays.state)), engine)
        policy.function.entry(
            now_s, arrays.engines[engine], arrays.requests, queue, state, parameters, self.estimator_of(engine), plan,
            limits[0],
        )  # fmt: skip
        return plan

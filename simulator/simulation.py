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
from servegym.simulator.deployment import Deployment, EstimatorModel
from servegym.simulator.diagnosis import error_of
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.errors import DeploymentError
from servegym.simulator.failures import Failure, call
from servegym.simulator.gains import Gain
from servegym.simulator.incidents import Incident
from servegym.simulator.loop import advance
from servegym.simulator.policies import Policy
from servegym.simulator.results import Result
from servegym.simulator.signatures import Estimator, StateTables, state_view
from servegym.simulator.statuses import AT_BATCHES, DECISION, DONE, PAUSED, QUEUE_FULL, SIGNALS_FULL, TIMELINE_FULL
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
                raise error_of(self, status)
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
            raise error_of(self, status)

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

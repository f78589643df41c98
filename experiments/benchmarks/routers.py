"""How many requests each registered router sends somewhere in a second, with 128 engines.

PolyServe's scheduler arranges 4825 a second. What a decision costs depends on what the router knows, so each
router gets its own: a run under it is stopped half-way through the arrivals, and the requests that come next are
routed one after the other at that moment. Nothing is sent, so each finds the same state, but for the numbers that the
router itself keeps. Many decisions take less than the 13 us of a call from Python, so a compiled loop calls the very
function that the event loop calls. Copies of the state are made before each repetition.

Where prefill and decode engines are apart, a request is routed twice, unless the router names both at once.
"""

import dataclasses
import time
from typing import Any, NamedTuple

from experiments.benchmarks import cluster
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes
from servegym.baselines.registry import router_names
from servegym.errors import ExperimentError
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of, title_of
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import LOADS
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.fleet.held_queues import READY, route_request
from servegym.simulator.records.fields import copied
from servegym.simulator.records.state import ROUTER_STATE, SIMULATION_STATE
from servegym.simulator.records.types import ROLE_DECODE, ROLE_PREFILL
from servegym.simulator.runs.simulation import Simulation

PUBLISHED_PER_S = 4825.0  # PolyServe, evaluation: requests its scheduler arranges on one server, for over 100 engines


@compiled(types.void(SIMULATION_STATE, ROUTER_STATE, types.float64, types.int64, types.int64))
def route_all(run, router_state, now_s, first, count):
    """Route `count` requests from `first` on, all at the same time; for a decode engine too, if none was named."""
    for r in range(first, first + count):
        route_request(run, router_state, r, READY, now_s)
        e = router_state.route[0].engine
        if e >= 0 and router_state.known.snapshots[e].role == ROLE_PREFILL and router_state.route[0].decode_engine < 0:
            request = run.requests[r]
            request.num_output_tokens, request.computed_tokens = 1, request.prompt_tokens
            route_request(run, router_state, r, READY, now_s)
            request.num_output_tokens, request.computed_tokens = 0, 0


class Case(NamedTuple):
    """Where routers are timed. suffix: of the names of its figures."""

    suffix: str
    load: float
    is_disaggregated: bool

    def spec(self, total: int) -> ServingSpec:
        half = total // 2
        engines = {"prefill": total - half, "decode": half} if self.is_disaggregated else {"engines": total}
        return ServingSpec().replaced(device=cluster.DEVICE, **engines)


CASES = (
    Case("", LOADS["high"], is_disaggregated=False),
    Case("_overload", LOADS["overload"], is_disaggregated=False),
    Case("_disaggregated", LOADS["high"], is_disaggregated=True),
    Case("_disaggregated_overload", LOADS["overload"], is_disaggregated=True),
)


class Timed:
    """A router, in the middle of a run.

    mean_record: requests without a token on an engine that takes such, on average.
    """

    def __init__(self, name: str, case: Case, sizes: Sizes):
        profile, spec = load_profile(cluster.DEVICE), case.spec(sizes.routed_engines)
        engines = spec.fleet.total
        served = cluster.workload(profile, engines, engines * sizes.routed_requests_per_engine, case.load)
        middle = len(served) // 2
        scenario = cluster.scenario(served, deployment_of(spec), name)
        self.simulation = Simulation(dataclasses.replace(scenario, until_s=float(served.table["arrival_s"][middle])))
        self.simulation.run()
        self.first = int(self.simulation.arrays.status[0].next_arrival)
        self.count = sizes.routed_decisions
        if self.first + self.count > len(served):
            raise ExperimentError(
                f"{name}: {len(served) - self.first} of {self.count} requests to route have not arrived"
            )
        snapshots = self.simulation.router_state.known.snapshots
        self.mean_record = float(snapshots["prefills"][snapshots["role"] != ROLE_DECODE].mean())

    def requests_per_s(self) -> float:
        """Requests routed in a second of processor time."""
        run, router_state, now_s = self.made_ready()
        route_all.entry(run, router_state, now_s, self.first, 1)  # compiles, or reads what was compiled
        run, router_state, now_s = self.made_ready()
        begin_s = time.thread_time()
        route_all.entry(run, router_state, now_s, self.first, self.count)
        return self.count / (time.thread_time() - begin_s)

    def made_ready(self) -> tuple[Any, Any, float]:
        """Copies of the run's and the router's state, with the requests that come next arriving now."""
        run, router_state = copied(self.simulation.arrays), copied(self.simulation.router_state)
        now_s = float(run.status[0].now_s)
        coming = run.requests[self.first : self.first + self.count]
        coming["first_deadline_s"] += now_s - coming["arrival_s"]
        coming["arrival_s"] = now_s
        return run, router_state, now_s


def measure(sizes: Sizes) -> list[Figure]:
    """Each router with co-located engines at load 1."""
    return [figure(name, CASES[0], sizes) for name in router_names()]


def measure_all(sizes: Sizes) -> list[Figure]:
    """Each router in each case."""
    return [figure(name, case, sizes) for name in router_names() for case in CASES]


def figure(name: str, case: Case, sizes: Sizes) -> Figure:
    timed = Timed(name, case, sizes)
    speeds = [timed.requests_per_s() for _ in range(sizes.repetitions)]
    engines = title_of(case.spec(sizes.routed_engines)).partition(" x ")[0]
    return Figure.of(
        f"router_{name.replace('-', '_')}{case.suffix}_requests_per_s",
        speeds,
        f"{engines} engines, load {case.load:g}; {timed.mean_record:.1f} in a queue record",
        at_least=PUBLISHED_PER_S,
    )

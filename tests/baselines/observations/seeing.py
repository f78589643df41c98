"""The observations as compiled functions that Python can call, and as arrays with names."""

from typing import Any

import numpy as np

from servegym.baselines.observations import caching as caching_page
from servegym.baselines.observations import day as day_page
from servegym.baselines.observations import engine as engine_page
from servegym.baselines.observations import queue as queue_page
from servegym.baselines.observations import routing as routing_page
from servegym.baselines.observations import sessions as sessions_page
from servegym.baselines.observations import tiers as tiers_page
from servegym.baselines.observations.fields import Layout
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import array, fresh
from servegym.simulator.records.signatures import (
    QUEUE,
    RANK_TABLE,
    REQUEST,
    REQUESTS,
    ROUTER_CONTEXT,
    SCALER_CONTEXT,
    SCHEDULER_CONTEXT,
    ScalerContext,
    SchedulerContext,
    State,
)
from servegym.simulator.runs.simulation import Simulation

SEEN = array(types.float32)
Seen = dict[str, float]  # by full name, each found within its bounds
WRITTEN_BEHIND = 7.0  # what stands behind the numbers that are to be written


@compiled(types.void(SCHEDULER_CONTEXT, RANK_TABLE, SEEN))
def see_engine(context, ranks, out):
    engine_page.observe_engine(context, ranks, out)


@compiled(types.int64(SCHEDULER_CONTEXT, RANK_TABLE, QUEUE, types.int64, SEEN))
def see_queue(context, ranks, order, slots, out):
    return queue_page.observe_queue(context, ranks, order, slots, out)


@compiled(types.void(ROUTER_CONTEXT, types.int64, types.int64, types.int64, types.int64, SEEN))
def see_routing(context, r, chosen, decode, slots, out):
    routing_page.observe_routing(context, r, chosen, decode, slots, out)


@compiled(types.void(ROUTER_CONTEXT, types.int64, types.int64, types.int64, types.int64, SEEN))
def see_caching(context, r, chosen, slots, measure, out):
    caching_page.observe_caching(context, r, chosen, slots, measure, out)


@compiled(types.void(REQUEST, types.float64, SEEN))
def see_session(request, now_s, out):
    sessions_page.write_session(request, now_s, out, 0)


@compiled(types.void(SCALER_CONTEXT, array(layout.MOVE), types.int64, SEEN))
def see_tiers(context, moves, slots, out):
    tiers_page.observe_tiers(context, moves, slots, out)


@compiled(types.void(SCALER_CONTEXT, array(layout.MOVE), types.int64, types.int64, SEEN))
def see_day(context, moves, wanted, slots, out):
    day_page.observe_day(context, moves, wanted, slots, out)


@compiled(types.int64(REQUESTS, QUEUE, RANK_TABLE, types.int64, QUEUE))
def choose(requests, queue, plan, slots, order):
    return queue_page.fill_slots(False, requests, queue, plan, slots, order)


def empty(shape: Layout) -> np.ndarray:
    """float32[size and one more]: nothing written yet."""
    out = np.full(shape.size + 1, np.nan, "f4")
    out[-1] = WRITTEN_BEHIND
    return out


def named(shape: Layout, out: np.ndarray) -> Seen:
    """The numbers by name; fails unless each is within its bounds and no others were written."""
    assert out[-1] == WRITTEN_BEHIND, "written beyond the observation"
    seen = out[:-1]
    bad = ~((shape.low <= seen) & (seen <= shape.high))
    assert not bad.any(), [(name, float(value)) for (name, _), value, is_bad in zip(shape, seen, bad, strict=True)
                           if is_bad]  # fmt: skip
    return dict(zip((name for name, _ in shape), seen.tolist(), strict=True))


def context_of(now_s: float, engine: Any, requests: np.ndarray, queue: np.ndarray, estimator: Any) -> SchedulerContext:
    """Of a scheduler that remembers nothing."""
    state = fresh(State, {"rows": 0, "fields": 0, "tasks": 0})
    return SchedulerContext(now_s, engine, requests, queue, state, np.zeros(0), estimator, np.zeros((0, len(queue))))


def of_engine(now_s: float, engine: Any, requests: np.ndarray, queue: np.ndarray, estimator: Any) -> Seen:
    shape = engine_page.engine_layout()
    ranks, out = np.zeros(len(queue), layout.RANK), empty(shape)
    see_engine(context_of(now_s, engine, requests, queue, estimator), ranks, out)
    return named(shape, out)


def of_queue(
    now_s: float, engine: Any, requests: np.ndarray, queue: np.ndarray, estimator: Any, plan: np.ndarray, slots: int
) -> tuple[Seen, list[int]]:
    """What is seen, and the places in the queue of the requests in the slots."""
    shape = queue_page.queue_layout(slots)
    out, order = empty(shape), np.full(min(slots, len(queue)), -1, "i4")
    filled = see_queue(context_of(now_s, engine, requests, queue, estimator), plan, order, slots, out)
    return named(shape, out), order[:filled].tolist()


def at_batch(simulation: Simulation, slots: int) -> tuple[Seen, list[int]]:
    """`of_queue` where a simulation has stopped before a batch, ranked by its own scheduler."""
    arrays = simulation.arrays
    e, now_s = int(arrays.status[0].deciding_engine), float(arrays.status[0].now_s)
    policy = simulation.settings.schedulers[int(arrays.engines[e].pool)]
    plan = simulation.ranks_of(policy, arrays.parameters[e], e, now_s)
    queue = arrays.queues[e][: arrays.engines[e].queue_length]
    return of_queue(now_s, arrays.engines[e], arrays.requests, queue, simulation.estimator_of(e), plan, slots)


def of_routing(simulation: Simulation, r: int, now_s: float, chosen: int, decode: int, slots: int) -> Seen:
    shape = routing_page.routing_layout(slots)
    out = empty(shape)
    see_routing(simulation.router_context(now_s), r, chosen, decode, slots, out)
    return named(shape, out)


def of_caching(simulation: Simulation, r: int, now_s: float, chosen: int, measure: int, slots: int) -> Seen:
    shape = caching_page.caching_layout(slots)
    out = empty(shape)
    see_caching(simulation.router_context(now_s), r, chosen, slots, measure, out)
    return named(shape, out)


def of_session(request: np.record, now_s: float) -> list[float]:
    """`SESSION_FIELDS`, in order."""
    out = np.zeros(sessions_page.SESSION, "f4")
    see_session(request, now_s, out)
    return out.tolist()


def scaler_context(simulation: Simulation, now_s: float) -> ScalerContext:
    """The scaler's context; its arrays are those of the run."""
    arrays, router_state = simulation.arrays, simulation.router_state
    return ScalerContext(
        now_s, arrays.requests, router_state.known, router_state.scaler_state, router_state.scaler_parameters,
        router_state.estimates, arrays.scratch,
    )  # fmt: skip


def of_tiers(simulation: Simulation, now_s: float, slots: int) -> Seen:
    shape = tiers_page.tiers_layout(slots)
    out = empty(shape)
    see_tiers(scaler_context(simulation, now_s), simulation.router_state.moves, slots, out)
    return named(shape, out)


def of_day(simulation: Simulation, now_s: float, wanted: int, slots: int) -> Seen:
    shape = day_page.day_layout(slots)
    out = empty(shape)
    see_day(scaler_context(simulation, now_s), simulation.router_state.moves, wanted, slots, out)
    return named(shape, out)

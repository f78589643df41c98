"""The observations as compiled functions that Python can call, and as arrays with names."""

from typing import Any

import numpy as np
from numba import types

from servegym.baselines.observations import engine as engine_page
from servegym.baselines.observations import queue as queue_page
from servegym.baselines.observations import routing as routing_page
from servegym.baselines.observations import tiers as tiers_page
from servegym.baselines.observations.fields import Layout
from servegym.simulator import types as layout
from servegym.simulator.compilation import compiled
from servegym.simulator.signatures import ENGINE, ESTIMATES, ESTIMATOR, KNOWN, PLANS, QUEUE, REQUESTS, array
from servegym.simulator.simulation import Simulation

SEEN = array(types.float32)
Seen = dict[str, float]  # by full name, each found within its bounds
WRITTEN_BEHIND = 7.0  # what stands behind the numbers that are to be written


@compiled(types.void(types.float64, ENGINE, REQUESTS, QUEUE, ESTIMATOR, PLANS, SEEN))
def see_engine(now_s, engine, requests, queue, estimator, plan, out):
    engine_page.observe_engine(now_s, engine, requests, queue, estimator, plan, out)


@compiled(types.int64(types.float64, ENGINE, REQUESTS, QUEUE, ESTIMATOR, PLANS, QUEUE, types.int64, SEEN))
def see_queue(now_s, engine, requests, queue, estimator, plan, order, slots, out):
    return queue_page.observe_queue(now_s, engine, requests, queue, estimator, plan, order, slots, out)


@compiled(
    types.void(
        types.float64, types.int64, REQUESTS, KNOWN, ESTIMATES, types.int64, types.int64, types.int64, SEEN
    )
)  # fmt: skip
def see_routing(now_s, r, requests, known, estimates, chosen, decode, slots, out):
    routing_page.observe_routing(now_s, r, requests, known, estimates, chosen, decode, slots, out)


@compiled(types.void(types.float64, REQUESTS, KNOWN, ESTIMATES, array(layout.MOVE), types.int64, SEEN))
def see_tiers(now_s, requests, known, estimates, moves, slots, out):
    tiers_page.observe_tiers(now_s, requests, known, estimates, moves, slots, out)


@compiled(types.int64(REQUESTS, QUEUE, PLANS, types.int64, QUEUE))
def choose(requests, queue, plan, slots, order):
    return queue_page.fill_slots(requests, queue, plan, slots, order)


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


def of_engine(now_s: float, engine: Any, requests: np.ndarray, queue: np.ndarray, estimator: Any) -> Seen:
    shape = engine_page.engine_layout()
    plan, out = np.zeros(len(queue), layout.PLAN), empty(shape)
    see_engine(now_s, engine, requests, queue, estimator, plan, out)
    return named(shape, out)


def of_queue(
    now_s: float, engine: Any, requests: np.ndarray, queue: np.ndarray, estimator: Any, plan: np.ndarray, slots: int
) -> tuple[Seen, list[int]]:
    """What is seen, and the places in the queue of the requests in the slots."""
    shape = queue_page.queue_layout(slots)
    out, order = empty(shape), np.full(min(slots, len(queue)), -1, "i4")
    filled = see_queue(now_s, engine, requests, queue, estimator, plan, order, slots, out)
    return named(shape, out), order[:filled].tolist()


def at_batch(simulation: Simulation, slots: int) -> tuple[Seen, list[int]]:
    """`of_queue` where a simulation has stopped before a batch, ranked by its own scheduler."""
    arrays = simulation.arrays
    e, now_s = int(arrays.clock[0].deciding_engine), float(arrays.clock[0].now_s)
    policy = simulation.settings.schedulers[int(arrays.engines[e].kind)]
    plan = simulation.plan_of(policy, arrays.parameters[e], e, now_s)
    queue = arrays.queues[e][: arrays.engines[e].queue_length]
    return of_queue(now_s, arrays.engines[e], arrays.requests, queue, simulation.estimator_of(e), plan, slots)


def of_routing(simulation: Simulation, r: int, now_s: float, chosen: int, decode: int, slots: int) -> Seen:
    shape = routing_page.routing_layout(slots)
    out, books = empty(shape), simulation.books
    see_routing(
        now_s, r, simulation.arrays.requests, books.known, books.estimates, chosen, decode, slots, out
    )  # fmt: skip
    return named(shape, out)


def of_tiers(simulation: Simulation, now_s: float, slots: int) -> Seen:
    shape = tiers_page.tiers_layout(slots)
    out, books = empty(shape), simulation.books
    see_tiers(now_s, simulation.arrays.requests, books.known, books.estimates, books.moves, slots, out)
    return named(shape, out)

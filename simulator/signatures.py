"""The fixed signatures of what plugs into the event loop, and the tuples that carry them.

scheduler   ranks the requests of an engine and sets the limits of its next batch
victims     says who gives up memory first; called only when memory is short
latency     the duration of a batch from its sums: a device model (what it takes), or inside an estimator
            (what a policy believes it takes)
exec        an estimator's time for all that each queued request has left, without the constant part of a batch,
            in one call for the whole queue (a call for each request cost more than the arithmetic)
gain        what a token earns when it is emitted
"""

from typing import Any, NamedTuple

import numba
from numba import types

from servegym.simulator import types as layout
from servegym.simulator.compilation import compiled, kernel
from servegym.simulator.memory import BLOCK

REQUEST = numba.from_dtype(layout.REQUEST)
OUTCOME = numba.from_dtype(layout.OUTCOME)
ENGINE = numba.from_dtype(layout.ENGINE)
GROUP = numba.from_dtype(layout.GROUP)
LIMITS = numba.from_dtype(layout.LIMITS)
BATCH = numba.from_dtype(layout.BATCH)


def array(item: Any, dimensions: int = 1) -> types.Array:
    """A C-contiguous array of a Numba type or of a NumPy dtype."""
    return types.Array(item if isinstance(item, types.Type) else numba.from_dtype(item), dimensions, "C")


REQUESTS = array(REQUEST)
QUEUE = array(types.int32)
PLANS = array(layout.PLAN)
NUMBERS = array(types.float64)
TABLE = array(types.float64, 2)

latency_signature = types.float64(BATCH, NUMBERS)  # (batch, coefficients) -> s
request_signature = types.float64(types.int64, types.int64, types.boolean, NUMBERS)
# (tokens, cached tokens, decoding, coefficients) -> s, without the constant part of a batch
exec_signature = types.void(REQUESTS, QUEUE, NUMBERS, PLANS)
# (requests, queue, coefficients, plan): writes plan[i].exec_s for request queue[i]
gain_signature = types.float64(REQUEST, OUTCOME, types.float64)
# (request and outcome before the token is counted, time of emission in s) -> gain


class Estimator(NamedTuple):
    """What a policy believes a batch takes: two functions and their coefficients."""

    batch_s: Any  # latency_signature
    exec_s: Any  # exec_signature
    coefficients: Any  # float64[k]
    scratch: Any  # BATCH[2]: for a policy that asks about batches of its own making


class State(NamedTuple):
    """What a policy remembers: numbers it keeps itself between decisions, and running statistics the loop keeps for it.

    A policy says in its `StateFields` which it has; the others are empty.
    """

    requests: Any  # float64[requests, fields]
    engines: Any  # float64[engines, fields]
    clients: Any  # float64[clients, fields], of the engine that is deciding
    by_client: Any  # GROUP[clients], of the engine that is deciding
    by_application: Any  # GROUP[applications], of the engine that is deciding


class StateTables(NamedTuple):
    """State of all engines."""

    requests: Any  # float64[requests, fields]
    engines: Any  # float64[engines, fields]
    clients: Any  # float64[engines, clients, fields]
    by_client: Any  # GROUP[engines, clients]
    by_application: Any  # GROUP[engines, applications]


def state_view(tables, e):
    """What the policy remembers at engine e. From Python: a kernel would give back whole tables, not views of them."""
    return State(tables.requests, tables.engines, tables.clients[e], tables.by_client[e], tables.by_application[e])


state_of = kernel(state_view)


ESTIMATOR = types.NamedTuple(
    (types.FunctionType(latency_signature), types.FunctionType(exec_signature), NUMBERS, array(layout.BATCH)), Estimator
)
STATE = types.NamedTuple((TABLE, TABLE, TABLE, array(GROUP), array(GROUP)), State)
STATE_TABLES = types.NamedTuple((TABLE, TABLE, array(types.float64, 3), array(GROUP, 2), array(GROUP, 2)), StateTables)

scheduler_signature = types.void(
    types.float64,  # now, s
    ENGINE,
    REQUESTS,  # all requests of the run; the queue names those here
    QUEUE,  # the engine's requests, waiting and running, in order of arrival
    STATE,
    NUMBERS,  # the policy's parameters, in the order it declares them
    ESTIMATOR,
    PLANS,  # to be written: plan[i] is for request queue[i]
    LIMITS,  # to be written
)
victims_signature = scheduler_signature


class Functions(NamedTuple):
    """The functions a run is made of."""

    scheduler: Any  # scheduler_signature
    victims: Any  # victims_signature
    device_batch_s: Any  # latency_signature
    gain: Any  # gain_signature


class Run(NamedTuple):
    """The arrays of a run: everything it reads and writes."""

    clock: Any  # CLOCK[1]
    requests: Any  # REQUEST[requests]
    outcomes: Any  # OUTCOME[requests]
    engines: Any  # ENGINE[engines]
    queues: Any  # int32[engines, capacity]: requests of each engine, in order of arrival
    entries: Any  # ENTRY[engines, capacity]: the running batch of each engine
    sums: Any  # BATCH[2]: the batch being formed, and a scratch copy
    blocks: Any  # BLOCK[engines, blocks]
    events: Any  # EVENT[engines]
    packing: Any  # PACKING[1]
    limits: Any  # LIMITS[1]
    plan: Any  # PLAN[capacity]
    order: Any  # int32[capacity]
    timeline: Any  # TIMELINE[...]; used if clock.recording
    tbt_histogram: Any  # int64[TBT_BINS]
    parameters: Any  # float64[...]: the scheduler's
    device: Any  # float64[engines, ...]: coefficients of each engine's device model
    state: Any  # StateTables
    estimator: Any  # Estimator; its coefficients are those of the engine that is deciding
    fitted: Any  # float64[...]: the estimator's coefficients before correction
    disturbance: Any  # DISTURBANCE[1]
    correction: Any  # CORRECTION[1]


FUNCTIONS = types.NamedTuple(
    tuple(
        types.FunctionType(signature)
        for signature in (scheduler_signature, victims_signature, latency_signature, gain_signature)
    ),
    Functions,
)
RUN = types.NamedTuple(
    (
        array(layout.CLOCK),
        REQUESTS,
        array(layout.OUTCOME),
        array(layout.ENGINE),
        array(types.int32, 2),
        array(layout.ENTRY, 2),
        array(layout.BATCH),
        array(BLOCK, 2),
        array(layout.EVENT),
        array(layout.PACKING),
        array(layout.LIMITS),
        PLANS,
        QUEUE,
        array(layout.TIMELINE),
        array(types.int64),
        NUMBERS,
        TABLE,
        STATE_TABLES,
        ESTIMATOR,
        NUMBERS,
        array(layout.DISTURBANCE),
        array(layout.CORRECTION),
    ),
    Run,
)
advance_signature = types.int64(RUN, FUNCTIONS, types.boolean, types.float64)

scheduler = compiled(scheduler_signature)
victims = compiled(victims_signature)
latency = compiled(latency_signature)
request_latency = compiled(request_signature)
queue_latency = compiled(exec_signature)
gain = compiled(gain_signature)

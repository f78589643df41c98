"""The fixed signatures of what plugs into the event loop, and the tuples that carry them.

scheduler   ranks the requests of an engine and sets the limits of its next batch
router      names the engine for a request when it is ready
scaler      says from time to time which tier each engine is in
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

KINDS = 4  # of engines in a cluster: each pool is one, with its scheduler, its device model and its estimator
REQUEST = numba.from_dtype(layout.REQUEST)
OUTCOME = numba.from_dtype(layout.OUTCOME)
ENGINE = numba.from_dtype(layout.ENGINE)
GROUP = numba.from_dtype(layout.GROUP)
ROUTE = numba.from_dtype(layout.ROUTE)
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


class Estimates(NamedTuple):
    """What a router believes batches and requests take, engine by engine; functions go by the engine's kind."""

    batch_s: Any  # latency_signature[KINDS]
    request_s: Any  # request_signature[KINDS]
    coefficients: Any  # float64[engines, k]
    scratch: Any  # BATCH[2]


class Prefixes(NamedTuple):
    """The chunks of prompts that can be shared, and which of them a router has sent to which engine."""

    chunk_tokens: Any  # int
    offsets: Any  # int64[requests + 1]: chunks of request r are chunks[offsets[r]:offsets[r + 1]]
    chunks: Any  # int32[...]: equal numbers, equal prompts up to the end of the chunk
    sent: Any  # PLACE[engines, sets, WAYS]: a prefix store of each engine, as the router takes it to be


class Known(NamedTuple):
    """What a router or scaler knows of the engines, and the requests that wait with it."""

    views: Any  # VIEW[engines]
    records: Any  # int32[engines, capacity]: views[e].prefills requests without a token since, in the order sent
    running: Any  # int32[engines, capacity]: views[e].decodes requests with a token since, in the order heard
    tiers: Any  # TIER[tiers + 2]: after the tiers best effort, and the simulator's own
    prefixes: Any  # Prefixes


class State(NamedTuple):
    """What a policy remembers: numbers it keeps itself between decisions, and running statistics the loop keeps for it.

    A policy says in its `StateFields` which it has; the others are empty.
    """

    requests: Any  # float64[requests, fields]
    engines: Any  # float64[engines, fields]
    clients: Any  # float64[clients, fields], of the engine that is deciding
    by_client: Any  # GROUP[clients], of the engine that is deciding
    by_application: Any  # GROUP[applications], of the engine that is deciding
    tasks: Any  # TASK[slots]: the preemptible batches of the engine that is deciding; REQUEST.task names the slot


class StateTables(NamedTuple):
    """State of all engines."""

    requests: Any  # float64[requests, fields]
    engines: Any  # float64[engines, fields]
    clients: Any  # float64[engines, clients, fields]
    by_client: Any  # GROUP[engines, clients]
    by_application: Any  # GROUP[engines, applications]
    tasks: Any  # TASK[engines, slots]


def state_view(tables, e):
    """What the policy remembers at engine e. From Python: a kernel would give back whole tables, not views of them."""
    return State(
        tables.requests, tables.engines, tables.clients[e], tables.by_client[e], tables.by_application[e],
        tables.tasks[e],
    )  # fmt: skip


state_of = kernel(state_view)


ESTIMATOR = types.NamedTuple(
    (types.FunctionType(latency_signature), types.FunctionType(exec_signature), NUMBERS, array(layout.BATCH)), Estimator
)
STATE = types.NamedTuple((TABLE, TABLE, TABLE, array(GROUP), array(GROUP), array(layout.TASK)), State)
STATE_TABLES = types.NamedTuple(
    (TABLE, TABLE, array(types.float64, 3), array(GROUP, 2), array(GROUP, 2), array(layout.TASK, 2)), StateTables
)

ESTIMATES = types.NamedTuple(
    (
        types.UniTuple(types.FunctionType(latency_signature), KINDS),
        types.UniTuple(types.FunctionType(request_signature), KINDS),
        TABLE,
        array(layout.BATCH),
    ),
    Estimates,
)
PREFIXES = types.NamedTuple((types.int64, array(types.int64), array(types.int32), array(layout.PLACE, 3)), Prefixes)
KNOWN = types.NamedTuple(
    (array(layout.VIEW), array(types.int32, 2), array(types.int32, 2), array(layout.TIER), PREFIXES), Known
)
router_signature = types.void(
    types.float64,  # now, s
    types.int64,  # the request to send somewhere
    REQUESTS,  # all requests of the run; a router knows what was given at arrival and the tokens emitted, no more
    KNOWN,
    TABLE,  # float64[engines, fields]: the router's own numbers
    NUMBERS,  # the router's parameters
    ESTIMATES,
    PLANS,  # to work with: as long as a queue record and one more
    QUEUE,  # the same
    ROUTE,  # to be written
)
scaler_signature = types.void(
    types.float64,  # now, s
    REQUESTS,
    KNOWN,
    TABLE,  # float64[engines, fields]: the scaler's own numbers
    NUMBERS,  # the scaler's parameters
    ESTIMATES,
    array(layout.MOVE),  # to be written: what becomes of each engine; set to what it is now
)
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
    """The functions of engines, by the engine's kind, and of the gain."""

    schedulers: Any  # scheduler_signature[KINDS]
    victims: Any  # victims_signature[KINDS]
    devices: Any  # latency_signature[KINDS]
    batch_s: Any  # latency_signature[KINDS], the estimators'
    exec_s: Any  # exec_signature[KINDS]
    gain: Any  # gain_signature


class Decider(NamedTuple):
    """What decides at the engine whose batch is being formed."""

    scheduler: Any  # scheduler_signature
    victims: Any  # victims_signature
    estimator: Any  # Estimator


class Run(NamedTuple):
    """The arrays of a run: what its engines read and write. (Each array adds to the cost of every call: no more.)"""

    clock: Any  # CLOCK[1]
    requests: Any  # REQUEST[requests]
    outcomes: Any  # OUTCOME[requests]
    engines: Any  # ENGINE[engines]
    queues: Any  # int32[engines, capacity]: requests of each engine, in order of arrival
    entries: Any  # ENTRY[engines, capacity]: the running batch of each engine
    sums: Any  # BATCH[4]: the batch being formed, a scratch copy, and two for policies
    blocks: Any  # BLOCK[engines, blocks]
    events: Any  # EVENT[2 engines]
    due: Any  # int32[engines]: engines that may start an iteration at this instant, by index
    packing: Any  # PACKING[1]
    limits: Any  # LIMITS[1]
    plan: Any  # PLAN[capacity]
    order: Any  # int32[capacity]
    timeline: Any  # TIMELINE[...]; used if clock.recording
    tbt_histogram: Any  # int64[TBT_BINS]
    parameters: Any  # float64[engines, ...]: of each engine's scheduler
    device: Any  # float64[engines, ...]: coefficients of each engine's device model
    estimate: Any  # float64[engines, ...]: coefficients of each engine's estimator, as corrected
    fitted: Any  # FITTED[engines, ...]: the same before correction, and what of it is multiplied
    state: Any  # StateTables
    disturbance: Any  # DISTURBANCE[1]
    correction: Any  # CORRECTION[1]


class Books(NamedTuple):
    """The router and the scaler, what they know and keep, and what is between engines."""

    router: Any  # router_signature
    scaler: Any  # scaler_signature
    estimates: Any  # Estimates
    parameters: Any  # float64[...], of the router
    state: Any  # float64[engines, fields], of the router
    scaler_parameters: Any  # float64[...]
    scaler_state: Any  # float64[engines, fields]
    route: Any  # ROUTE[1]
    moves: Any  # MOVE[engines]
    known: Any  # Known
    signals: Any  # SIGNAL[...], made longer when they are full; empty where signals take no time
    reports: Any  # REPORT[engines, REPORTS]
    link: Any  # LINK[1]
    coming: Any  # LINE[engines]: requests whose KV waits to be sent there
    incidents: Any  # INCIDENT[...], in order of time
    stores: Any  # PLACE[engines, sets, WAYS]: the engines' prefix stores
    tasks: Any  # RUNNING[engines, slots]: what no policy sees of the tasks in StateTables.tasks
    operators: Any  # float64[kinds, operators, 4]: seconds per layer for (tokens, tokens^2, tokens x cached, 1)


def of_kinds(signature: Any) -> types.UniTuple:
    """A function for each kind of engine."""
    return types.UniTuple(types.FunctionType(signature), KINDS)


FUNCTIONS = types.NamedTuple(
    (
        of_kinds(scheduler_signature),
        of_kinds(victims_signature),
        of_kinds(latency_signature),
        of_kinds(latency_signature),
        of_kinds(exec_signature),
        types.FunctionType(gain_signature),
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
        QUEUE,
        array(layout.PACKING),
        array(layout.LIMITS),
        PLANS,
        QUEUE,
        array(layout.TIMELINE),
        array(types.int64),
        TABLE,
        TABLE,
        TABLE,
        array(layout.FITTED, 2),
        STATE_TABLES,
        array(layout.DISTURBANCE),
        array(layout.CORRECTION),
    ),
    Run,
)
BOOKS = types.NamedTuple(
    (
        types.FunctionType(router_signature),
        types.FunctionType(scaler_signature),
        ESTIMATES,
        NUMBERS,
        TABLE,
        NUMBERS,
        TABLE,
        array(layout.ROUTE),
        array(layout.MOVE),
        KNOWN,
        array(layout.SIGNAL),
        array(layout.REPORT, 2),
        array(layout.LINK),
        array(layout.LINE),
        array(layout.INCIDENT),
        array(layout.PLACE, 3),
        array(layout.RUNNING, 2),
        array(types.float64, 3),
    ),
    Books,
)
advance_signature = types.int64(RUN, BOOKS, FUNCTIONS, types.int64, types.float64)

scheduler = compiled(scheduler_signature)
router = compiled(router_signature)
scaler = compiled(scaler_signature)
victims = compiled(victims_signature)
latency = compiled(latency_signature)
request_latency = compiled(request_signature)
queue_latency = compiled(exec_signature)
gain = compiled(gain_signature)

"""The fixed signatures of what plugs into the event loop, and the tuples that carry them.

scheduler   ranks the requests of an engine and sets the limits of its next batch
router      names the engine for a request when it is ready
scaler      says from time to time which tier each engine is in
victims     ranks requests by which gives up memory first; called only when memory is short
latency     the duration of a batch from its sums: a device model (what it takes), or inside an estimator
            (what a policy believes it takes)
exec        an estimator's time for all that each queued request has left, without the constant part of a batch,
            in one call for the whole queue (a call for each request cost more than the arithmetic)
gain        what a token earns when it is emitted
"""

from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
from numba import types

from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import Field, Value, array, numba_type
from servegym.simulator.records.named_blocks import NAMED_BLOCK

KINDS = 4  # of engines in a cluster: each pool is one, with its scheduler, its device model and its estimator
REQUEST = numba.from_dtype(layout.REQUEST)
OUTCOME = numba.from_dtype(layout.OUTCOME)
ENGINE = numba.from_dtype(layout.ENGINE)
GROUP = numba.from_dtype(layout.GROUP)
ROUTE = numba.from_dtype(layout.ROUTE)
LIMITS = numba.from_dtype(layout.LIMITS)
BATCH = numba.from_dtype(layout.BATCH)


REQUESTS = array(REQUEST)
QUEUE = array(types.int32)
RANK_TABLE = array(layout.RANK)
NUMBERS = array(types.float64)
TABLE = array(types.float64, 2)

latency_signature = types.float64(BATCH, NUMBERS)  # (batch, coefficients) -> s
request_signature = types.float64(types.int64, types.int64, types.boolean, NUMBERS)
# (tokens, cached tokens, decoding, coefficients) -> s, without the constant part of a batch
exec_signature = types.void(REQUESTS, QUEUE, NUMBERS, RANK_TABLE)
# (requests, queue, coefficients, ranks): writes ranks[i].exec_s for request queue[i]
gain_signature = types.float64(REQUEST, OUTCOME, types.float64)
# (request and outcome before the token is counted, time of emission in s) -> gain


def of_kinds(signature: Any) -> types.UniTuple:
    """A function for each kind of engine."""
    return types.UniTuple(types.FunctionType(signature), KINDS)


class Estimator(NamedTuple):
    """What a policy believes a batch takes: two functions and their coefficients."""

    batch_s: Annotated[Any, Value(types.FunctionType(latency_signature), "the time of a batch")]
    exec_s: Annotated[Any, Value(types.FunctionType(exec_signature), "the time of what each queued request has left")]
    coefficients: Annotated[np.ndarray, Field("f8", ("coefficients",), "of both")]
    scratch: Annotated[np.ndarray, Field(layout.BATCH, (2,), "for a policy that asks about batches of its own making")]


class Estimates(NamedTuple):
    """What a router believes batches and requests take, engine by engine; functions go by the engine's kind."""

    batch_s: Annotated[Any, Value(of_kinds(latency_signature), "the time of a batch")]
    request_s: Annotated[Any, Value(of_kinds(request_signature), "the time of a request")]
    coefficients: Annotated[np.ndarray, Field("f8", ("engines", "coefficients"), "of each engine")]
    scratch: Annotated[np.ndarray, Field(layout.BATCH, (2,), "for batches of its own making")]


class Prefixes(NamedTuple):
    """The chunks of prompts that can be shared, and what a router knows of which engine has them."""

    chunk_tokens: Annotated[int, Value(types.int64, "tokens in a chunk; 0: no prompts are known to begin alike")]
    offsets: Annotated[np.ndarray, Field("i8", ("offsets",), "request r has chunks[offsets[r]:offsets[r + 1]]")]
    chunks: Annotated[np.ndarray, Field("i4", ("chunks",), "equal numbers, equal prompts up to the end of the chunk")]
    sent: Annotated[
        np.ndarray,
        Field(layout.STORED_CHUNK, ("engines", "sets", layout.WAYS), "the router's index of what it sent to each"),
    ]
    told: Annotated[
        np.ndarray, Field(NAMED_BLOCK, ("engines", "told_blocks"), "what engines that publish KV events have told it")
    ]


PREFIXES = numba_type(Prefixes)


class Known(NamedTuple):
    """What a router or scaler knows of the engines, and the requests that wait with it."""

    snapshots: Annotated[np.ndarray, Field(layout.ENGINE_SNAPSHOT, ("engines",), "what is known of each engine")]
    prefilling: Annotated[
        np.ndarray,
        Field("i4", ("engines", "capacity"), "snapshots[e].prefills requests without a token since, in the order sent"),
    ]
    decoding: Annotated[
        np.ndarray,
        Field("i4", ("engines", "capacity"), "snapshots[e].decodes requests with a token since, in the order heard"),
    ]
    tiers: Annotated[np.ndarray, Field(layout.TIER, ("tiers",), "after the tiers best effort, and the simulator's own")]
    prefixes: Annotated[Prefixes, Value(PREFIXES, "chunks of prompts, and where they were sent")]
    adapters: Annotated[
        np.ndarray,
        Field("i4", ("engines", "loras"), "adapters of what was sent to each, the latest first; 0: no more"),
    ]


class State(NamedTuple):
    """What a policy remembers: numbers it keeps itself between decisions, and running statistics the loop keeps for it.

    A policy says in its `StateFields` which it has; the others are empty. clients and what follows are those of the
    engine that is deciding.
    """

    requests: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "the policy's numbers of each request")]
    engines: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "of each engine")]
    clients: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "of each client")]
    by_client: Annotated[np.ndarray, Field(layout.GROUP, ("rows",), "running statistics by client")]
    by_application: Annotated[np.ndarray, Field(layout.GROUP, ("rows",), "running statistics by application")]
    tasks: Annotated[np.ndarray, Field(layout.TASK, ("tasks",), "preemptible batches; REQUEST.task is an index")]


class StateTables(NamedTuple):
    """State of all engines."""

    requests: Annotated[
        np.ndarray, Field("f8", ("state_requests", "request_fields"), "a policy's numbers of each request")
    ]
    engines: Annotated[np.ndarray, Field("f8", ("state_engines", "engine_fields"), "of each engine")]
    clients: Annotated[
        np.ndarray, Field("f8", ("engines", "state_clients", "client_fields"), "of each client at an engine")
    ]
    by_client: Annotated[np.ndarray, Field(layout.GROUP, ("engines", "clients"), "running statistics by client")]
    by_application: Annotated[np.ndarray, Field(layout.GROUP, ("engines", "applications"), "and by application")]
    tasks: Annotated[np.ndarray, Field(layout.TASK, ("engines", "tasks"), "the preemptible batches of each engine")]


def state_view(tables, e):
    """What the policy remembers at engine e. From Python: a kernel would give back whole tables, not views of them."""
    return State(
        tables.requests, tables.engines, tables.clients[e], tables.by_client[e], tables.by_application[e],
        tables.tasks[e],
    )  # fmt: skip


state_of = kernel(state_view)


ESTIMATOR, STATE, STATE_TABLES = numba_type(Estimator), numba_type(State), numba_type(StateTables)
ESTIMATES, KNOWN = numba_type(Estimates), numba_type(Known)


class SchedulerContext(NamedTuple):
    """What a scheduler is given to decide by."""

    now_s: Annotated[float, Value(types.float64, "the time, s")]
    engine: Annotated[Any, Value(ENGINE, "the engine whose batch is to be formed")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "all of the run; the queue names those here")]
    queue: Annotated[np.ndarray, Field("i4", ("n",), "the engine's, waiting and decoding, in order of arrival")]
    state: Annotated[State, Value(STATE, "what the policy remembers")]
    parameters: Annotated[np.ndarray, Field("f8", ("parameters",), "which `Parameters.read` gives by name")]
    estimator: Annotated[Estimator, Value(ESTIMATOR, "what the policy believes a batch takes")]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "which `Scratch.read` gives by name")]


class RouterContext(NamedTuple):
    """What a router is given to decide by. Of requests it knows what was given at arrival, and the tokens emitted."""

    now_s: Annotated[float, Value(types.float64, "the time, s")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "all of the run")]
    known: Annotated[Known, Value(KNOWN, "what is known of the engines")]
    state: Annotated[np.ndarray, Field("f8", ("engines", "fields"), "the policy's own numbers")]
    parameters: Annotated[np.ndarray, Field("f8", ("parameters",), "which `Parameters.read` gives by name")]
    estimates: Annotated[Estimates, Value(ESTIMATES, "what the policy believes batches take")]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "which `Scratch.read` gives by name")]


class ScalerContext(RouterContext):
    """What a scaler is given to decide by: the same."""

    __slots__ = ()


SCHEDULER_CONTEXT, ROUTER_CONTEXT = numba_type(SchedulerContext), numba_type(RouterContext)
SCALER_CONTEXT = numba_type(ScalerContext)

scheduler_signature = types.void(SCHEDULER_CONTEXT, RANK_TABLE, LIMITS)
# (context, ranks, limits): writes ranks[i] for request queue[i], and the limits
victims_signature = scheduler_signature
# the same: writes victim ranks, and what a victim keeps
router_signature = types.void(ROUTER_CONTEXT, types.int64, ROUTE)
# (context, request, route): writes where the request, an index into context.requests, goes
scaler_signature = types.void(SCALER_CONTEXT, array(layout.MOVE))
# (context, moves): writes what becomes of each engine; moves are set to what it is now

scheduler = compiled(scheduler_signature)
router = compiled(router_signature)
scaler = compiled(scaler_signature)
victims = compiled(victims_signature)
latency = compiled(latency_signature)
request_latency = compiled(request_signature)
queue_latency = compiled(exec_signature)
gain = compiled(gain_signature)

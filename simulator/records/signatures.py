"""The fixed signatures of what plugs into the event loop, and the tuples that carry them.

scheduler   ranks the requests of an engine and sets the limits of its next batch
router      names the engine for a request when it is ready
scaler      decides at intervals the tier and role of each engine
victims     ranks requests for eviction; called only when memory is short
latency     the duration of a batch from its sums, as a device model or as part of an estimator
exec        an estimator's time of the remaining tokens of each queued request, without the constant part of a batch;
            one call for the whole queue, as a call costs more than the arithmetic for a request
gain        what a token earns when it is emitted
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import Field, Value, array, numba_type
from servegym.simulator.records.named_blocks import NAMED_BLOCK

KINDS = 4  # most pools of a cluster; each has a scheduler, a device model and an estimator
REQUEST = types.from_dtype(layout.REQUEST)
OUTCOME = types.from_dtype(layout.OUTCOME)
ENGINE = types.from_dtype(layout.ENGINE)
GROUP = types.from_dtype(layout.GROUP)
ROUTE = types.from_dtype(layout.ROUTE)
LIMITS = types.from_dtype(layout.LIMITS)
BATCH = types.from_dtype(layout.BATCH)


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


def of_kinds(signature: types.Signature) -> types.Tuple:
    """Return the type of a tuple of functions, one for each pool."""
    return types.UniTuple(types.FunctionType(signature), KINDS)


class Estimator(NamedTuple):
    """A policy's estimates of times: two functions and their coefficients."""

    batch_s: Annotated[Any, Value(types.FunctionType(latency_signature), "the time of a batch")]
    exec_s: Annotated[Any, Value(types.FunctionType(exec_signature), "times of what queued requests have left")]
    coefficients: Annotated[np.ndarray, Field("f8", ("coefficients",), "of both functions")]
    scratch: Annotated[np.ndarray, Field(layout.BATCH, (2,), "for batches that a policy makes up")]


class Estimates(NamedTuple):
    """A router's estimates of times: functions for each pool, coefficients for each engine."""

    batch_s: Annotated[Any, Value(of_kinds(latency_signature), "the time of a batch")]
    request_s: Annotated[Any, Value(of_kinds(request_signature), "the time of a request")]
    coefficients: Annotated[np.ndarray, Field("f8", ("engines", "coefficients"), "for each engine")]
    scratch: Annotated[np.ndarray, Field(layout.BATCH, (2,), "for batches that a router makes up")]


class Prefixes(NamedTuple):
    """Chunks of prompts that can be shared, and the router's index of the engines that have them."""

    chunk_tokens: Annotated[int, Value(types.int64, "tokens in a chunk; 0: the trace has no shared prefixes")]
    offsets: Annotated[np.ndarray, Field("i8", ("offsets",), "request r has chunks[offsets[r]:offsets[r + 1]]")]
    chunks: Annotated[np.ndarray, Field("i4", ("chunks",), "equal numbers: equal prompts up to the end of the chunk")]
    sent: Annotated[
        np.ndarray,
        Field(layout.STORED_SET, ("engines", "sets"), "the router's index of what it sent to each"),
    ]
    published: Annotated[
        np.ndarray, Field(NAMED_BLOCK, ("engines", "published_blocks"), "blocks by the KV events of each engine")
    ]
    places: Annotated[np.ndarray, Field("i4", ("engines", "places"), "the hash table of the names of `published`")]
    kinds: Annotated[np.ndarray, Field(layout.ENGINE_KV_GROUPS, ("engines",), "KV cache groups of such engines")]


PREFIXES = numba_type(Prefixes)


class Known(NamedTuple):
    """What a router or scaler knows of the engines, and the requests that the router holds."""

    snapshots: Annotated[np.ndarray, Field(layout.ENGINE_SNAPSHOT, ("engines",), "what is known of each engine")]
    prefilling: Annotated[
        np.ndarray,
        Field("i4", ("engines", "capacity"), "snapshots[e].prefills requests without a token since, in the order sent"),
    ]
    decoding: Annotated[
        np.ndarray,
        Field("i4", ("engines", "capacity"), "snapshots[e].decodes requests with a token since, in the order heard"),
    ]
    tiers: Annotated[np.ndarray, Field(layout.TIER, ("tiers",), "tiers, then best effort, then the simulator's queue")]
    prefixes: Annotated[Prefixes, Value(PREFIXES, "chunks of prompts, and the engines that have them")]
    adapters: Annotated[
        np.ndarray,
        Field("i4", ("engines", "loras"), "adapters of the requests sent to each, latest first; 0: no more"),
    ]


class State(NamedTuple):
    """What a policy remembers: numbers that it writes itself, and running statistics that the loop keeps for it.

    A policy declares in its `StateFields` which it uses; the others are empty. `clients` and the fields after it belong
    to the engine that is deciding.
    """

    requests: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "numbers of each request")]
    engines: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "numbers of each engine")]
    clients: Annotated[np.ndarray, Field("f8", ("rows", "fields"), "numbers of each client")]
    by_client: Annotated[np.ndarray, Field(layout.GROUP, ("rows",), "running statistics by client")]
    by_application: Annotated[np.ndarray, Field(layout.GROUP, ("rows",), "running statistics by application")]
    tasks: Annotated[np.ndarray, Field(layout.TASK, ("tasks",), "preemptible batches; REQUEST.task is an index")]


class StateTables(NamedTuple):
    """What a policy remembers at all engines."""

    requests: Annotated[np.ndarray, Field("f8", ("state_requests", "request_fields"), "numbers of each request")]
    engines: Annotated[np.ndarray, Field("f8", ("state_engines", "engine_fields"), "numbers of each engine")]
    clients: Annotated[
        np.ndarray, Field("f8", ("engines", "state_clients", "client_fields"), "numbers of each client at an engine")
    ]
    by_client: Annotated[np.ndarray, Field(layout.GROUP, ("engines", "clients"), "running statistics by client")]
    by_application: Annotated[np.ndarray, Field(layout.GROUP, ("engines", "applications"), "the same by application")]
    tasks: Annotated[np.ndarray, Field(layout.TASK, ("engines", "tasks"), "the preemptible batches of each engine")]


def state_view(tables, e):
    """Return what the policy remembers at engine e; Python calls this, as `state_of` would return whole tables."""
    return State(
        tables.requests, tables.engines, tables.clients[e], tables.by_client[e], tables.by_application[e],
        tables.tasks[e],
    )  # fmt: skip


state_of = kernel(state_view)


ESTIMATOR, STATE, STATE_TABLES = numba_type(Estimator), numba_type(State), numba_type(StateTables)
ESTIMATES, KNOWN = numba_type(Estimates), numba_type(Known)


class SchedulerContext(NamedTuple):
    """What a scheduler decides by."""

    now_s: Annotated[float, Value(types.float64, "the time, s")]
    engine: Annotated[Any, Value(ENGINE, "the engine whose batch is to be formed")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "all of the run; the queue has their indices")]
    queue: Annotated[np.ndarray, Field("i4", ("n",), "indices of the engine's requests, in order of arrival")]
    state: Annotated[State, Value(STATE, "what the policy remembers")]
    parameters: Annotated[np.ndarray, Field("f8", ("parameters",), "read by name with `Parameters.read`")]
    estimator: Annotated[Estimator, Value(ESTIMATOR, "the policy's estimates of times")]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "read by name with `Scratch.read`")]


class RouterContext(NamedTuple):
    """What a router decides by. Of requests it knows what was given at arrival, and the output tokens so far."""

    now_s: Annotated[float, Value(types.float64, "the time, s")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "all of the run")]
    known: Annotated[Known, Value(KNOWN, "what is known of the engines")]
    state: Annotated[np.ndarray, Field("f8", ("engines", "fields"), "the policy's own numbers")]
    parameters: Annotated[np.ndarray, Field("f8", ("parameters",), "read by name with `Parameters.read`")]
    estimates: Annotated[Estimates, Value(ESTIMATES, "the policy's estimates of times")]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "read by name with `Scratch.read`")]


class ScalerContext(RouterContext):
    """What a scaler decides by: the same fields as a router's."""

    __slots__ = ()


SCHEDULER_CONTEXT, ROUTER_CONTEXT = numba_type(SchedulerContext), numba_type(RouterContext)
SCALER_CONTEXT = numba_type(ScalerContext)

scheduler_signature = types.void(SCHEDULER_CONTEXT, RANK_TABLE, LIMITS)
# (context, ranks, limits): writes ranks[i] for request queue[i], and the limits
victims_signature = scheduler_signature
# the same: writes victim ranks, and keep_tokens
router_signature = types.void(ROUTER_CONTEXT, types.int64, ROUTE)
# (context, request, route): writes the route of the request, an index into context.requests
scaler_signature = types.void(SCALER_CONTEXT, array(layout.MOVE))
# (context, moves): writes tier, closed and role of each engine; moves has the present ones

scheduler = compiled(scheduler_signature)
router = compiled(router_signature)
scaler = compiled(scaler_signature)
victims = compiled(victims_signature)
latency = compiled(latency_signature)
request_latency = compiled(request_signature)
queue_latency = compiled(exec_signature)
gain = compiled(gain_signature)

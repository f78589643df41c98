"""The state of a run: what its engines read and write, and what its router has; every array is declared here.

Of an array: its dtype (types.py), the length of each axis, and what it means. The sizes by which axes are called:
engines; requests, of the workload; capacity, of an engine's queue, doubled whenever it is full; tasks, for an engine's
preemptible batches (capacity, or 0 where no policy makes any); others are those of one table.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types

from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import Field, Value, numba_type
from servegym.simulator.records.named_blocks import CACHE, Cache
from servegym.simulator.records.signatures import (
    ESTIMATES,
    KNOWN,
    STATE_TABLES,
    Estimates,
    Estimator,
    Known,
    StateTables,
    exec_signature,
    gain_signature,
    latency_signature,
    of_kinds,
    router_signature,
    scaler_signature,
    scheduler_signature,
    victims_signature,
)


class Functions(NamedTuple):
    """The functions of engines, by the engine's kind, and of the gain."""

    schedulers: Annotated[Any, Value(of_kinds(scheduler_signature), "rank the requests of an engine")]
    victims: Annotated[Any, Value(of_kinds(victims_signature), "rank requests by which gives up memory first")]
    devices: Annotated[Any, Value(of_kinds(latency_signature), "what a batch takes")]
    batch_s: Annotated[Any, Value(of_kinds(latency_signature), "what the estimator says it takes")]
    exec_s: Annotated[Any, Value(of_kinds(exec_signature), "what it says each request has left")]
    gain: Annotated[Any, Value(types.FunctionType(gain_signature), "what a token earns")]


class Decider(NamedTuple):
    """What decides at the engine whose batch is being formed; made in kernels."""

    scheduler: Any  # scheduler_signature
    victims: Any  # victims_signature
    estimator: Estimator


class SimulationState(NamedTuple):
    """The arrays of a run: what its engines read and write. (Each array adds to the cost of every call: no more.)"""

    status: Annotated[np.ndarray, Field(layout.RUN_STATUS, (1,), "where the run stands")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "as policies see them")]
    outcomes: Annotated[np.ndarray, Field(layout.OUTCOME, ("requests",), "what only the simulator knows of them")]
    engines: Annotated[np.ndarray, Field(layout.ENGINE, ("engines",), "as their schedulers see them, and totals")]
    engine_limits: Annotated[np.ndarray, Field(layout.ENGINE_LIMITS, ("engines",), "whatever their schedulers say")]
    queues: Annotated[np.ndarray, Field("i4", ("engines", "capacity"), "requests of each, in order of arrival")]
    previous_order: Annotated[
        np.ndarray, Field("i4", ("engines", "capacity"), "their places in the last batch; 0: none")
    ]
    entries: Annotated[np.ndarray, Field(layout.ENTRY, ("engines", "capacity"), "the running batch of each")]
    sums: Annotated[np.ndarray, Field(layout.BATCH, (4,), "the batch being formed, a scratch copy, two for policies")]
    cache: Annotated[Cache, Value(CACHE, "KV memory of those that cache prefixes")]
    adapters: Annotated[np.ndarray, Field(layout.ADAPTER, ("engines", "adapters"), "LoRA adapters at each engine")]
    events: Annotated[np.ndarray, Field(layout.EVENT, ("events",), "a heap; ends of iterations and arrivals of KV")]
    due: Annotated[np.ndarray, Field("i4", ("engines",), "those that may start an iteration at this instant, by index")]
    packing: Annotated[np.ndarray, Field(layout.PACKING, (1,), "the batch being formed")]
    limits: Annotated[np.ndarray, Field(layout.LIMITS, (1,), "of the batch being formed")]
    ranks: Annotated[np.ndarray, Field(layout.RANK, ("capacity",), "of the queue of the engine that decides")]
    order: Annotated[
        np.ndarray, Field("i4", (3, "capacity"), "positions of that queue: as the packer visits them; two to work with")
    ]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "for policies to work with in one decision")]
    timeline: Annotated[np.ndarray, Field(layout.TIMELINE, ("timeline",), "what has happened, if status.recording")]
    tbt_histogram: Annotated[np.ndarray, Field("i8", ("tbt_bins",), "intervals between tokens")]
    parameters: Annotated[np.ndarray, Field("f8", ("engines", "parameters"), "of each engine's scheduler")]
    device: Annotated[np.ndarray, Field("f8", ("engines", "device"), "coefficients of each engine's device model")]
    estimate: Annotated[np.ndarray, Field("f8", ("engines", "coefficients"), "of each one's estimator, as corrected")]
    fitted: Annotated[np.ndarray, Field(layout.FITTED, ("engines", "coefficients"), "the same before correction")]
    state: Annotated[StateTables, Value(STATE_TABLES, "what schedulers remember")]
    disturbance: Annotated[np.ndarray, Field(layout.DISTURBANCE, (1,), "noise and drift of devices")]
    correction: Annotated[np.ndarray, Field(layout.CORRECTION, (1,), "how estimators are corrected")]


class RouterState(NamedTuple):
    """The router and the scaler, what they know and keep, and what is between engines."""

    router: Annotated[Any, Value(types.FunctionType(router_signature), "names the engine for a request")]
    scaler: Annotated[Any, Value(types.FunctionType(scaler_signature), "says which tier each engine is in")]
    estimates: Annotated[Estimates, Value(ESTIMATES, "what they believe batches take")]
    parameters: Annotated[np.ndarray, Field("f8", ("router_parameters",), "of the router")]
    state: Annotated[np.ndarray, Field("f8", ("engines", "router_fields"), "what the router keeps of each engine")]
    scaler_parameters: Annotated[np.ndarray, Field("f8", ("scaler_parameters",), "of the scaler")]
    scaler_state: Annotated[
        np.ndarray, Field("f8", ("engines", "scaler_fields"), "what the scaler keeps of each engine")
    ]
    route: Annotated[np.ndarray, Field(layout.ROUTE, (1,), "what the router has decided")]
    moves: Annotated[np.ndarray, Field(layout.MOVE, ("engines",), "what the scaler has decided")]
    known: Annotated[Known, Value(KNOWN, "what both know")]
    signals: Annotated[np.ndarray, Field(layout.SIGNAL, ("signals",), "on their way to the router, if that takes time")]
    kv_events: Annotated[np.ndarray, Field(layout.KV_EVENT, ("kv_events",), "the same of their blocks")]
    reports: Annotated[np.ndarray, Field(layout.REPORT, ("engines", layout.REPORTS), "the latest of each engine")]
    link: Annotated[np.ndarray, Field(layout.LINK, (1,), "over which KV is sent")]
    coming: Annotated[np.ndarray, Field(layout.HELD_QUEUE, ("engines",), "requests whose KV waits to be sent there")]
    incidents: Annotated[np.ndarray, Field(layout.INCIDENT, ("incidents",), "in order of time")]
    stores: Annotated[
        np.ndarray, Field(layout.STORED_CHUNK, ("engines", "sets", layout.WAYS), "the engines' prefix stores")
    ]
    following: Annotated[
        np.ndarray, Field(layout.FOLLOWING, ("followings",), "which request follows each, if any does")
    ]
    thinking: Annotated[np.ndarray, Field(layout.EVENT, ("followings",), "a heap: when those that follow others come")]
    entering: Annotated[
        np.ndarray, Field(layout.EVENT, ("entering",), "a heap: when those the front end has are ready")
    ]
    tasks: Annotated[np.ndarray, Field(layout.RUNNING, ("engines", "tasks"), "what no policy sees of state.tasks")]
    running: Annotated[
        np.ndarray, Field(layout.ENTRY, ("engines", "ahead"), "running batches, where next ones are formed")
    ]
    queued: Annotated[np.ndarray, Field("i4", ("ahead",), "the queue of the engine that forms one, as it is")]
    operators: Annotated[
        np.ndarray, Field("f8", ("kinds", "operators", 4), "s per layer for (tokens, tokens^2, tokens x cached, 1)")
    ]


SIMULATION_STATE, ROUTER_STATE = numba_type(SimulationState), numba_type(RouterState)
FUNCTIONS = numba_type(Functions)
advance_signature = types.int64(types.int64, types.int64, types.float64)
# (address of a parked run (parking.py), stop_at, until_s) -> why it returned (statuses.py)

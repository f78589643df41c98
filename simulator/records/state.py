"""The state of a run: the arrays of its engines and of its router, all declared here.

Each array has a dtype (types.py), the length of each axis, and a meaning. Named lengths:
engines; requests: of the workload; capacity: of an engine's queue, doubled when it is full; tasks: preemptible batches
of an engine (capacity, or 0 where no policy makes any). Other names are used by one table.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from servegym.simulator.compilation import numba_types as types
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
    """The functions of engines, one for each pool, and the gain."""

    schedulers: Annotated[Any, Value(of_kinds(scheduler_signature), "rank the requests of an engine")]
    victims: Annotated[Any, Value(of_kinds(victims_signature), "rank requests for eviction")]
    devices: Annotated[Any, Value(of_kinds(latency_signature), "the time of a batch")]
    batch_s: Annotated[Any, Value(of_kinds(latency_signature), "the estimated time of a batch")]
    exec_s: Annotated[Any, Value(of_kinds(exec_signature), "estimated times of the remaining tokens of requests")]
    gain: Annotated[Any, Value(types.FunctionType(gain_signature), "the gain of a token")]


class Decider(NamedTuple):
    """The policy functions and the estimator of the engine whose batch is being formed; made in kernels."""

    scheduler: Any  # scheduler_signature
    victims: Any  # victims_signature
    estimator: Estimator


class SimulationState(NamedTuple):
    """The arrays that the engines of a run read and write. Add none: each makes every kernel call slower."""

    status: Annotated[np.ndarray, Field(layout.RUN_STATUS, (1,), "status of the run")]
    requests: Annotated[np.ndarray, Field(layout.REQUEST, ("requests",), "as policies see them")]
    outcomes: Annotated[np.ndarray, Field(layout.OUTCOME, ("requests",), "what only the simulator knows of them")]
    engines: Annotated[np.ndarray, Field(layout.ENGINE, ("engines",), "as schedulers see them, and totals")]
    engine_limits: Annotated[np.ndarray, Field(layout.ENGINE_LIMITS, ("engines",), "limits of the engines")]
    queues: Annotated[np.ndarray, Field("i4", ("engines", "capacity"), "requests of each, in order of arrival")]
    previous_order: Annotated[
        np.ndarray, Field("i4", ("engines", "capacity"), "their places in the last batch's order; 0: none")
    ]
    entries: Annotated[np.ndarray, Field(layout.ENTRY, ("engines", "capacity"), "the running batch of each")]
    sums: Annotated[np.ndarray, Field(layout.BATCH, (4,), "of the batch being formed; scratch; two for policies")]
    cache: Annotated[Cache, Value(CACHE, "blocks of engines that cache prefixes")]
    adapters: Annotated[np.ndarray, Field(layout.ADAPTER, ("engines", "adapters"), "LoRA adapters at each engine")]
    events: Annotated[np.ndarray, Field(layout.EVENT, ("events",), "a heap; ends of iterations and arrivals of KV")]
    due: Annotated[np.ndarray, Field("i4", ("engines",), "those that may start an iteration at this instant, by index")]
    packing: Annotated[np.ndarray, Field(layout.PACKING, (1,), "the batch being formed")]
    limits: Annotated[np.ndarray, Field(layout.LIMITS, (1,), "of the batch being formed")]
    ranks: Annotated[np.ndarray, Field(layout.RANK, ("capacity",), "of the queue of the deciding engine")]
    order: Annotated[
        np.ndarray, Field("i4", (3, "capacity"), "positions in that queue: in visiting order; two scratch rows")
    ]
    scratch: Annotated[np.ndarray, Field("f8", ("scratch", "capacity"), "scratch of policies within a decision")]
    timeline: Annotated[np.ndarray, Field(layout.TIMELINE, ("timeline",), "past events, if status.recording")]
    tbt_histogram: Annotated[np.ndarray, Field("i8", ("tbt_bins",), "times between tokens")]
    parameters: Annotated[np.ndarray, Field("f8", ("engines", "parameters"), "of each engine's scheduler")]
    device: Annotated[np.ndarray, Field("f8", ("engines", "device"), "coefficients of each engine's device model")]
    estimate: Annotated[np.ndarray, Field("f8", ("engines", "coefficients"), "of each estimator, corrected")]
    fitted: Annotated[np.ndarray, Field(layout.FITTED, ("engines", "coefficients"), "of each estimator, as fitted")]
    state: Annotated[StateTables, Value(STATE_TABLES, "what schedulers remember between decisions")]
    disturbance: Annotated[np.ndarray, Field(layout.DISTURBANCE, (1,), "noise and drift of devices")]
    correction: Annotated[np.ndarray, Field(layout.CORRECTION, (1,), "settings of online correction")]


class RouterState(NamedTuple):
    """The router and the scaler, what they know and remember, and what is shared between engines."""

    router: Annotated[Any, Value(types.FunctionType(router_signature), "names the engine for a request")]
    scaler: Annotated[Any, Value(types.FunctionType(scaler_signature), "decides the tier and role of each engine")]
    estimates: Annotated[Estimates, Value(ESTIMATES, "their estimates of times")]
    parameters: Annotated[np.ndarray, Field("f8", ("router_parameters",), "of the router")]
    state: Annotated[np.ndarray, Field("f8", ("engines", "router_fields"), "the router's numbers of each engine")]
    scaler_parameters: Annotated[np.ndarray, Field("f8", ("scaler_parameters",), "of the scaler")]
    scaler_state: Annotated[
        np.ndarray, Field("f8", ("engines", "scaler_fields"), "the scaler's numbers of each engine")
    ]
    route: Annotated[np.ndarray, Field(layout.ROUTE, (1,), "the router's decision")]
    moves: Annotated[np.ndarray, Field(layout.MOVE, ("engines",), "the scaler's decision")]
    known: Annotated[Known, Value(KNOWN, "what router and scaler know")]
    signals: Annotated[np.ndarray, Field(layout.SIGNAL, ("signals",), "tokens that the router has not heard of yet")]
    kv_events: Annotated[np.ndarray, Field(layout.KV_EVENT, ("kv_events",), "KV events that it has not heard of yet")]
    reports: Annotated[np.ndarray, Field(layout.REPORT, ("engines", layout.REPORTS), "latest reports of each engine")]
    link: Annotated[np.ndarray, Field(layout.LINK, (1,), "the link for KV transfers")]
    coming: Annotated[np.ndarray, Field(layout.HELD_QUEUE, ("engines",), "requests whose KV waits to be sent to each")]
    incidents: Annotated[np.ndarray, Field(layout.INCIDENT, ("incidents",), "in order of time")]
    stores: Annotated[np.ndarray, Field(layout.STORED_SET, ("engines", "sets"), "the engines' prefix stores")]
    following: Annotated[np.ndarray, Field(layout.FOLLOWING, ("followings",), "places of requests in sessions")]
    thinking: Annotated[np.ndarray, Field(layout.EVENT, ("followings",), "a heap: arrivals of following requests")]
    entering: Annotated[
        np.ndarray, Field(layout.EVENT, ("entering",), "a heap: when requests in the front end are ready")
    ]
    tasks: Annotated[np.ndarray, Field(layout.RUNNING, ("engines", "tasks"), "hidden part of state.tasks")]
    running: Annotated[
        np.ndarray, Field(layout.ENTRY, ("engines", "ahead"), "running batches of engines that form batches ahead")
    ]
    queued: Annotated[np.ndarray, Field("i4", ("ahead",), "copy of the queue of an engine that forms a batch ahead")]
    operators: Annotated[
        np.ndarray, Field("f8", ("kinds", "operators", 4), "s per layer for (tokens, tokens^2, tokens x cached, 1)")
    ]


SIMULATION_STATE, ROUTER_STATE = numba_type(SimulationState), numba_type(RouterState)
FUNCTIONS = numba_type(Functions)
advance_signature = types.int64(types.int64, types.int64, types.float64)
# (address of a parked run (parking.py), stop_at, until_s) -> why it returned (statuses.py)

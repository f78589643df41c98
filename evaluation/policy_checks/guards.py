"""Call a policy twice on copies in which everything that it may not read is junk, with different junk each time.

Both decisions must be equal, nothing may have changed that the policy may not write, and indices must be in range:
bounds are checked, and guard rows after the last show the use of an index of -1.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from servegym.errors import PolicyError
from servegym.simulator.batching.ordering import leave_out_unlisted
from servegym.simulator.batching.ranking import reset_limits
from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.compilation.failures import failure_of
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import (
    Estimates,
    Known,
    RouterContext,
    ScalerContext,
    SchedulerContext,
    State,
    state_view,
)
from servegym.simulator.runs.simulation import Simulation

GUARD_ROWS = 3  # after the end of the arrays, in the second call
KEPT = ("client", "application", "engine", "task")  # indices into other tables
SCARCE = 0.5  # free share of an engine's memory below which victims are checked


class Variant(NamedTuple):
    """Random fill for one of two test calls, and the number of guard rows after the arrays."""

    random: np.random.Generator
    rows: int
    mark: float


def variants() -> tuple[Variant, Variant]:
    """Return the variants of the two calls."""
    return Variant(np.random.default_rng(1), 0, 1e9), Variant(np.random.default_rng(2), GUARD_ROWS, -1e9)


def junk(variant: Variant, array: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Return a copy of REQUEST[...] with junk in the rows outside `keep` and in guard rows."""
    copy = _nonsense(variant.mark, len(array) + variant.rows).copy()
    for name in KEPT:
        copy[name][: len(array)] = array[name]
    copy[keep] = array[keep]
    return copy


@functools.lru_cache(maxsize=8)
def _nonsense(mark: float, length: int) -> np.ndarray:
    """Return junk REQUEST[length]: different for each variant, the same at each decision."""
    random = np.random.default_rng(int(mark > 0))
    rows = np.zeros(length, layout.REQUEST)
    for name in rows.dtype.names or ():
        if name not in KEPT and rows.dtype[name].kind in "if":
            rows[name] = random.integers(1, 99, length)
    return rows


def marked(variant: Variant, length: int, dtype: Any) -> np.ndarray:
    """Return output rows and guard rows, filled with a mark that the policy should overwrite."""
    rows = np.zeros(length + variant.rows, dtype)
    for name in ("tier", "key", "victim_tier", "victim_key", "exec_s"):
        rows[name] = variant.mark
    return rows


def scratch_of(variant: Variant, policy: Policy, length: int) -> np.ndarray:
    """Return scratch memory filled with junk."""
    return variant.random.integers(1, 99, (policy.scratch.rows, length + variant.rows)).astype("f8")


def ask(policy: Policy, function: Any, *arguments: Any) -> None:
    """Call a policy's function. Raises PolicyError, with the line, if it raises.

    If a bounds check gives no line, the function runs again as plain Python, which does.
    """
    try:
        function.entry(*arguments)
    except Exception as error:
        failure = failure_of(error, error.__traceback__)
        if not is_of(function, failure.file):
            try:
                function.py_func(*arguments)
            except Exception as again:
                failure = failure_of(again, innermost(again, function))
            failure = failure._replace(error=f"{type(error).__name__}: {error}")
        if not is_of(function, failure.file):
            failure = failure._replace(file=function.written.__code__.co_filename, line=0)
        where = f"{Path(failure.file).name}, line {failure.line or '?'}, in {failure.function or function.__name__}"
        raise PolicyError(f"{policy.kind} {policy.label} failed: {where}: {failure.error}") from None


def is_of(function: Any, file: str) -> bool:
    """Return whether a file is the policy's own, not one of servegym's that calls it."""
    return file == function.written.__code__.co_filename


def innermost(error: BaseException, function: Any) -> Any:
    """Return the traceback of an exception, cut after the last line that is in the file of a function."""
    trace, last = error.__traceback__, None
    while trace is not None:
        if is_of(function, trace.tb_frame.f_code.co_filename):
            last = trace
        trace = trace.tb_next
    return type(last)(None, last.tb_frame, last.tb_lasti, last.tb_lineno) if last is not None else None


def must_be_equal(names: Any, first: Any, second: Any, complaint: str) -> None:
    """Raise PolicyError with the first field, and row, in which two records or arrays differ."""
    for name in names:
        if first[name].tobytes() == second[name].tobytes():
            continue
        one, other = np.atleast_1d(first[name]), np.atleast_1d(second[name])
        same = (one == other) | ((one != one) & (other != other))
        if not same.all():
            raise PolicyError(complaint.format(name=name, row=int(np.argmin(same))))


def unchanged(what: str, before: bytes, after: np.ndarray, writer: str) -> None:
    """Check that an array still has the bytes `before`."""
    if after.tobytes() != before:
        raise PolicyError(f"{writer} wrote into {what}, which it may only read")


def check_decision(simulation: Simulation, policy: Policy) -> None:
    """Check what the policy decides where the simulation has stopped for it. Raises PolicyError."""
    status = simulation.arrays.status[0]
    if policy.kind == "router" and status.deciding_request >= 0:
        check_router(simulation, policy, int(status.deciding_request))
    elif policy.kind == "scaler" and status.deciding_check:
        check_scaler(simulation, policy)
    elif policy.kind == "scheduler" and status.deciding_engine >= 0:
        check_scheduler(simulation, policy, int(status.deciding_engine))


def check_scheduler(simulation: Simulation, policy: Policy, e: int) -> None:
    """Check the call that the engine's scheduler would get now."""
    arrays, writer = simulation.arrays, f"scheduler {policy.label}"
    engine, now_s = arrays.engines[e], float(arrays.status[0].now_s)
    queue = arrays.queues[e, : engine.queue_length].copy()
    also = [engine.transfers.receiving] if engine.transfers.receiving >= 0 else []
    keep = np.concatenate([queue, np.array(also, "i4")])
    kept = np.flatnonzero(arrays.requests["blocks"][queue] > 0)
    short = engine.free_blocks < SCARCE * engine.total_blocks and len(kept) > 0
    seen: list[tuple] = []
    for variant in variants():
        requests, limits = junk(variant, arrays.requests, keep), np.zeros(1, layout.LIMITS)
        given = requests.tobytes()
        ranks = marked(variant, len(queue), layout.RANK)
        getattr(reset_limits, "py_func", reset_limits)(limits[0], engine, arrays.engine_limits[e])
        state = state_view(type(arrays.state)(*(table.copy() for table in arrays.state)), e)
        estimator = simulation.estimator_of(e)
        own_queue, own_engine, parameters = queue.copy(), arrays.engines[e : e + 1].copy(), arrays.parameters[e].copy()
        scratch, engine_given = scratch_of(variant, policy, len(queue)), own_engine.tobytes()
        context = SchedulerContext(now_s, own_engine[0], requests, own_queue, state, parameters, estimator, scratch)
        ask(policy, policy.function, context, ranks, limits[0])
        plain_function(leave_out_unlisted)(ranks, limits[0], len(queue))
        decided = ranks.copy()
        if short:
            ranks["keep_tokens"] = 0
            ask(policy, policy.victims, context, ranks, limits[0])
        unchanged("requests", given, requests, writer)
        unchanged("the queue", queue.tobytes(), own_queue, writer)
        unchanged("the engine", engine_given, own_engine, writer)
        n = len(queue)
        if variant.rows and any((ranks[name][n:] != variant.mark).any() for name in ("tier", "key", "victim_key")):
            raise PolicyError(f"{writer} wrote past the end of ranks or before its start: ranks[-1] is such a position")
        seen.append((decided[:n], ranks[:n][kept], limits[0], state))
    (decided, giving, limits, state), (others, giving_2, limits_2, state_2) = seen
    unwritten = np.flatnonzero((decided["tier"] == 1e9) & (others["tier"] == -1e9))
    if len(unwritten):
        raise PolicyError(f"{writer} gives position {unwritten[0]} of its queue no tier; ranks[i] should be written "
                          "for every i, with LEAVE_OUT where a request is to be left out")  # fmt: skip
    elsewhere = "by what is not in its queue: it should read requests[queue[i]] and state.requests[queue[i]], not [i]"
    out = decided["tier"] >= layout.LEAVE_OUT
    decided["key"][out] = others["key"][out] = 0.0
    of_position = f"{writer} sets {{name}} of position {{row}} {elsewhere}"
    must_be_equal(("tier", "key", "headroom_blocks"), decided, others, of_position)
    must_be_equal(layout.LIMITS.names, limits, limits_2, f"{writer} sets the limit {{name}} {elsewhere}")
    if short:
        names = ("victim_tier", "victim_key", "keep_tokens")
        must_be_equal(names, giving, giving_2, f"{writer} sets {{name}} of a request {elsewhere}")
    for name, one, other in zip(State._fields, state, state_2, strict=True):
        if one.tobytes() != other.tobytes() and not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise PolicyError(f"{writer} sets state.{name} {elsewhere}")
        rows: Any = np.delete(np.arange(len(one)), queue) if name == "requests" and len(one) else []
        if len(rows) and not np.array_equal(one[rows], arrays.state.requests[rows], equal_nan=True):
            raise PolicyError(f"{writer} writes into state.requests of requests that are not in its queue")


def known_copy(variant: Variant, known: Known) -> Known:
    """Return a copy of what a router knows, with junk after the end of each engine's lists of requests."""
    prefilling, decoding = known.prefilling.copy(), known.decoding.copy()
    for e, snapshot in enumerate(known.snapshots):
        for table, used in ((prefilling, snapshot.prefills), (decoding, snapshot.decodes)):
            table[e, used:] = variant.random.integers(0, 2, table.shape[1] - used)
    own = {name: getattr(known.prefixes, name).copy() for name in ("sent", "published", "places")}
    prefixes = known.prefixes._replace(**own)
    adapters = known.adapters.copy()
    return Known(known.snapshots.copy(), prefilling, decoding, known.tiers.copy(), prefixes, adapters)


def known_requests(known: Known, *others: int) -> np.ndarray:
    """Return the requests that a router may read: those sent, the first of each held queue, and `others`."""
    lists = []
    for e, snapshot in enumerate(known.snapshots):
        lists += [known.prefilling[e, : snapshot.prefills], known.decoding[e, : snapshot.decodes]]
    firsts = known.tiers["first"][known.tiers["waiting"] > 0]
    return np.concatenate([*lists, firsts, np.array(others)]).astype("i8")


def estimates_copy(estimates: Estimates) -> Estimates:
    """Return a copy of a router's estimates."""
    return estimates._replace(coefficients=estimates.coefficients.copy(), scratch=np.zeros(2, layout.BATCH))


def check_router(simulation: Simulation, policy: Policy, r: int) -> None:
    """Check the call that the router would get for request r now."""
    arrays, router_state, writer = simulation.arrays, simulation.router_state, f"router {policy.label}"
    keep, now_s = known_requests(router_state.known, r), float(arrays.status[0].now_s)
    seen: list[tuple] = []
    for variant in variants():
        requests, known = junk(variant, arrays.requests, keep), known_copy(variant, router_state.known)
        given = requests.tobytes()
        before = {name: getattr(known, name).tobytes() for name in ("snapshots", "prefilling", "tiers")}
        scratch = scratch_of(variant, policy, arrays.scratch.shape[1])
        state, parameters, route = router_state.state.copy(), router_state.parameters.copy(), router_state.route.copy()
        route["engine"], route["decode_engine"], route["tier"] = layout.HOLD, -1, layout.STAY
        estimates = estimates_copy(router_state.estimates)
        context = RouterContext(now_s, requests, known, state, parameters, estimates, scratch)
        ask(policy, policy.function, context, r, route[0])
        unchanged("requests", given, requests, writer)
        for name, bytes_given in before.items():
            unchanged(f"known.{name}", bytes_given, getattr(known, name), writer)
        seen.append((route, state))
    (route, state), (route_2, state_2) = seen
    elsewhere = (
        "by what it does not know: requests that were not sent, or positions behind the end of known.prefilling[e]"
    )
    must_be_equal(layout.ROUTE.names, route[0], route_2[0], f"{writer} sets {{name}} {elsewhere}")
    if not np.array_equal(state, state_2, equal_nan=True):
        raise PolicyError(f"{writer} sets its state {elsewhere}")


def check_scaler(simulation: Simulation, policy: Policy) -> None:
    """Check the call that the scaler would get now."""
    arrays, router_state, writer = simulation.arrays, simulation.router_state, f"scaler {policy.label}"
    keep, now_s = known_requests(router_state.known), float(arrays.status[0].now_s)
    seen: list[tuple] = []
    for variant in variants():
        requests, known = junk(variant, arrays.requests, keep), known_copy(variant, router_state.known)
        given, snapshots = requests.tobytes(), known.snapshots.tobytes()
        state, parameters = router_state.scaler_state.copy(), router_state.scaler_parameters.copy()
        moves = router_state.moves.copy()
        moves["tier"], moves["closed"] = arrays.engines["tier"], arrays.engines["closed"]
        moves["role"] = arrays.engines["next_role"]
        estimates = estimates_copy(router_state.estimates)
        scratch = scratch_of(variant, policy, arrays.scratch.shape[1])
        context = ScalerContext(now_s, requests, known, state, parameters, estimates, scratch)
        ask(policy, policy.function, context, moves)
        unchanged("requests", given, requests, writer)
        unchanged("known.snapshots", snapshots, known.snapshots, writer)
        seen.append((moves, state))
    (moves, _), (moves_2, _) = seen
    elsewhere = "by what it does not know"
    must_be_equal(layout.MOVE.names, moves, moves_2, f"{writer} sets {{name}} of engine {{row}} {elsewhere}")

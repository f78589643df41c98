"""Errors of a run that cannot go on: what is wrong, where, and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from servegym.errors import DeploymentError, PolicyError, ServegymError, StalledError
from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.compilation.failures import Failure, culprit
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.features.front import next_to_send
from servegym.simulator.features.front_end import next_ready
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import Settings
from servegym.simulator.policies.refusals import what_is_wrong, why_not
from servegym.simulator.records import types as layout
from servegym.simulator.records.state import RouterState, SimulationState
from servegym.simulator.records.statuses import (
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_MOVE,
    BAD_RANKS,
    BAD_ROUTE,
    BAD_TIME,
    IN_VAIN,
    THRASHING,
    TOO_OFTEN,
)

UNNAMED = ("deployment", "cluster")  # default names


class Stopped(NamedTuple):
    """A run that has stopped. failures: exceptions of the scenario's functions."""

    scenario: Scenario
    settings: Settings
    arrays: SimulationState
    router_state: RouterState
    failures: list[Failure]


def error_of(run: Stopped, reason: int) -> ServegymError:
    """Return the error of a run that stopped for a reason (see `statuses`), or in which a function failed."""
    fleet = run.scenario.deployment.name
    where = f"{'' if fleet in UNNAMED else f'{fleet}: '}at {run.arrays.status[0].now_s:g} s"
    router, scaler, route = run.settings.router.label, run.settings.scaler.label, run.router_state.route[0]
    if run.failures:
        failed = culprit(run.failures[0], named_functions(run))
        return PolicyError(f"{where} {failed} failed: {run.failures[0]}")
    if reason == BAD_RANKS:
        engine = starting_engine(run)
        n, policy = engine.queue_length, run.settings.schedulers[engine.pool]
        wrong = what_is_wrong(run.arrays.limits[0], run.arrays.ranks[:n], run.arrays.queues[engine.index, :n])
        return PolicyError(f"{where} scheduler {policy.label} {wrong} ({place_of(policy.function)})")
    if reason in (BAD_DURATION, BAD_ESTIMATE):
        return DeploymentError(f"{where} {wrong_time(run, estimate=reason == BAD_ESTIMATE)}")
    if reason == BAD_TIME:
        return DeploymentError(
            f"{where} there is no event before {layout.LATEST_S:g} s, the latest time of a run: {next_thing(run)}"
        )
    if reason == THRASHING:
        engine = starting_engine(run)
        policy, leaving = run.settings.schedulers[engine.pool].name, engine.transfers.leaving_blocks
        reserved = f"{leaving} of its {engine.total_blocks} blocks hold KV that no decode engine takes, and "
        return StalledError(
            f"{where} engine {engine.index} ({run.settings.cluster.pools[engine.pool].name}) has computed "
            f"{layout.MOST_FILLINGS} times what its memory holds since its last output token: "
            f"{reserved if leaving else ''}under scheduler {policy} requests evict each other again and again; "
            "it should not evict one of them before it has a token"
        )
    if reason == TOO_OFTEN:
        status = run.arrays.status[0]
        return PolicyError(
            f"{where} scaler {scaler} is asked every {status.scaler.interval_s:g} s, and would be more than "
            f"{layout.MOST_CHECKS:,} times before any other event: {next_thing(run)}; it should have a "
            "longer interval_s"
        )
    if reason == IN_VAIN:
        return StalledError(
            f"{where} scaler {scaler} has moved engines out of the common pool more than {layout.MOST_STARTS:,} times "
            "since the last output token; it should leave an engine in its tier until that has served a request"
        )
    if reason == BAD_ROUTE and route.engine >= 0 and route.tier >= 0 and not run.settings.router.moves_engines:
        return PolicyError(
            f"{where} router {router} moved engine {route.engine} to tier {route.tier}; a router that does so "
            "should be registered with moves_engines=True"
        )
    if reason == BAD_ROUTE:
        r = run.arrays.status[0].router.decided
        if route.engine == layout.REFUSE:
            first_s = run.arrays.requests["first_token_s"][r]
            wrong = f"named tier {route.tier}" if np.isnan(first_s) else f"had its first token at {first_s:g} s"
            return PolicyError(
                f"{where} router {router} refused request {r}, which {wrong}; it should refuse a request before its "
                "first token, and move no engine for it"
            )
        wrong = why_not(route, run.router_state.known.snapshots, run.arrays.requests[r], len(run.settings.tiers))
        return PolicyError(
            f"{where} router {router} sent request {r} to engine {route.engine} (decode engine "
            f"{route.decode_engine}, held queue {route.held_queue}, tier {route.tier}): {wrong}; it should name an "
            "engine that takes the request, or hold it in a held queue"
        )
    if reason == BAD_MOVE:
        tiers, named = len(run.settings.tiers), run.router_state.moves["tier"]
        wrong_tiers = np.flatnonzero((named < -1) | (named >= tiers))
        if len(wrong_tiers) == 0:
            return PolicyError(f"{where} scaler {scaler} {wrong_role(run)}")
        e = int(wrong_tiers[0])
        return PolicyError(
            f"{where} scaler {scaler} named tier {named[e]} for engine {e}, which does not exist; tiers are -1 to "
            f"{tiers - 1}"
        )
    held = run.arrays.status[0].router.held
    if not takes_a_first(run):
        return StalledError(
            f"{where} {held} requests wait, and no event can come: scaler {scaler} has opened no engine that "
            "takes them; it should open or start one, or give one their role"
        )
    return StalledError(
        f"{where} router {router} holds {held} requests, and no event can come; it should send a request to an "
        "idle engine"
    )


def wrong_role(run: Stopped) -> str:
    """Return which invalid role the scaler gave which engine, and what would be right."""
    engines, named = run.arrays.engines, run.router_state.moves["role"]
    fixed = np.isnan(engines["role_change_s"])
    able = (named == engines["next_role"]) | (~fixed & np.isin(named, (layout.ROLE_PREFILL, layout.ROLE_DECODE)))
    e = int(np.flatnonzero(~able)[0])
    role = layout.ROLES[named[e]] if 0 <= named[e] < len(layout.ROLES) else f"number {named[e]}"
    why = "the role of its pool is fixed (set role_change_s)" if fixed[e] else "it should be prefill or decode"
    return f"gave engine {e} the role {role}; {why}"


def takes_a_first(run: Stopped) -> bool:
    """Return whether an engine takes the first request of a held queue."""
    tiers, snapshots = run.router_state.known.tiers[:-1], run.router_state.known.snapshots
    computed = run.arrays.requests["computed_tokens"][tiers["first"][tiers["waiting"] > 0]]
    is_open = (snapshots["up"] == 1) & (snapshots["closed"] == 0)
    decodes = snapshots["role"] == layout.ROLE_DECODE
    return bool((is_open[:, None] & (decodes[:, None] == (computed > 0))).any())


def place_of(function: Compiled) -> str:
    """Return name, file and line of a function as its author wrote it."""
    code = function.written.__code__
    return f"{function.written.__name__}, {Path(code.co_filename).name}, line {code.co_firstlineno}"


def policy_functions(settings: Settings) -> list[tuple[str, Compiled]]:
    """Return the functions of a run's policies, each with a name for errors."""
    named = [(f"scheduler {policy.label}", function) for policy in settings.schedulers
             for function in (policy.function, policy.victims)]  # fmt: skip
    named += [(f"router {settings.router.label}", settings.router.function)]
    return [*named, (f"scaler {settings.scaler.label}", settings.scaler.function)]


def named_functions(run: Stopped) -> list[tuple[str, Compiled]]:
    """Return all compiled functions of a run's inputs, each with a name for errors."""
    settings, gain = run.settings, run.scenario.gain
    named = policy_functions(settings)
    named += [(f"scheduler {policy.label}", function) for policy in settings.schedulers
              for function in policy.rank_then_filter or ()]  # fmt: skip
    named += [(f"gain function {gain.name}", gain.function)]
    for pool in settings.cluster.pools:
        named += [(f"the device model of {pool.name}", pool.device.batch_s)]
        estimator = pool.estimator
        for function in (estimator.batch_s, estimator.exec_s, estimator.request_s):
            named += [(f"the estimator of {pool.name}", function)]
    return named


def wrong_time(run: Stopped, estimate: bool) -> str:
    """Return what is wrong with the duration or the estimate of the batch that an engine starts."""
    arrays = run.arrays
    engine, sums = starting_engine(run), arrays.sums[0]
    pool, most = run.settings.cluster.pools[engine.pool], f"{layout.LATEST_S:g} s"
    requests = int(sums.prefill_requests + sums.decode_requests)
    batch = f"a batch of {requests} requests and {int(sums.prefill_tokens + sums.decode_requests)} tokens"
    where = f"engine {engine.index} ({pool.name}):"
    if estimate and not engine.estimate_scale < np.inf:
        return (
            f"{where} online correction multiplies the estimator by {engine.estimate_scale:g}; a device and its "
            "estimator should not be so far apart, fit the one to the other or leave out the correction"
        )
    if estimate:
        return (
            f"{where} the estimator, times {engine.estimate_scale:g}, says that {batch} takes "
            f"{engine.batch_estimate_s:g} s; it should say 0 to {most}"
        )
    model_s = pool.device.batch_s(sums, arrays.device[engine.index])
    return (
        f"{where} the device model says that {batch} takes {model_s:g} s, to which come noise, drift and "
        f"{engine.moving_s:g} s for moving KV; together it should be 0 to {most}"
    )


def starting_engine(run: Stopped) -> np.record:
    """Return the engine that the loop was starting."""
    return run.arrays.engines[run.arrays.due[run.arrays.status[0].starting]]


WHAT_COMES = {
    layout.EVENT_KV_ARRIVAL: "the KV of request",
    layout.EVENT_DELIVERY: "the last token to the client of request",
}


def next_thing(run: Stopped) -> str:
    """Return in words the next event, and when it comes."""
    arrays, status, incidents = run.arrays, run.arrays.status[0], run.router_state.incidents
    coming: list[tuple[float, str]] = []
    if status.events > 0:
        event = arrays.events[0]
        what = WHAT_COMES.get(int(event.kind), "an end of an iteration of engine")
        coming.append((float(event.time_s), f"{what} {event.index} comes"))
    r, comes_s = min(
        (plain_function(find)(arrays, run.router_state) for find in (next_ready, next_to_send)), key=lambda one: one[1]
    )
    if r != NO_TURN:
        coming.append((float(comes_s), f"request {r} comes"))
    if status.next_incident < len(incidents):
        incident = incidents[status.next_incident]
        kind = layout.INCIDENTS[incident.kind]
        coming.append((float(incident.time_s), f"the incident '{kind}' of engine {incident.engine} comes"))
    if not coming:
        return "all held requests wait for signals of engines to the router"
    time_s, what = min(coming)
    return f"{what} at {time_s:g} s"

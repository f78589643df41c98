"""What has gone wrong in a run that cannot go on: where, and what would be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servegym.simulator import types as layout
from servegym.simulator.compilation import Compiled
from servegym.simulator.errors import DeploymentError, PolicyError, ServegymError
from servegym.simulator.failures import culprit
from servegym.simulator.refusals import what_is_wrong, why_not
from servegym.simulator.statuses import (
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_MOVE,
    BAD_PLAN,
    BAD_ROUTE,
    BAD_TIME,
    THRASHING,
    TOO_OFTEN,
)

if TYPE_CHECKING:
    from servegym.simulator.simulation import Simulation


def error_of(run: Simulation, status: int) -> ServegymError:
    """The error of a run that stopped with a status (see `statuses`), or in which a function failed."""
    where = f"{run.scenario.deployment.name}: at {run.arrays.clock[0].now_s:g} s"
    router, scaler, route = run.settings.router.label, run.settings.scaler.label, run.books.route[0]
    if run.failures:
        who = culprit(run.failures[0], named_functions(run))
        return PolicyError(f"{where} {who} failed: {run.failures[0]}")
    if status == BAD_PLAN:
        engine = starting_engine(run)
        n, label = engine.queue_length, run.settings.schedulers[engine.kind].label
        wrong = what_is_wrong(run.arrays.limits[0], run.arrays.plan[:n], run.arrays.queues[engine.index, :n])
        return PolicyError(f"{where} scheduler {label} {wrong}")
    if status in (BAD_DURATION, BAD_ESTIMATE):
        return DeploymentError(f"{where} {wrong_time(run, estimate=status == BAD_ESTIMATE)}")
    if status == BAD_TIME:
        return DeploymentError(
            f"{where} nothing more happens before {layout.LATEST_S:g} s, where a run ends: {next_thing(run)}"
        )
    if status == THRASHING:
        engine = starting_engine(run)
        policy = run.settings.schedulers[engine.kind].name
        return PolicyError(
            f"{where} engine {engine.index} ({run.settings.cluster.pools[engine.kind].name}) has computed "
            f"{layout.MOST_FILLINGS} times what its memory holds since a token came out: under scheduler {policy} "
            "requests take memory from each other again and again; it should leave one what it has until it has a "
            "token"
        )
    if status == TOO_OFTEN:
        clock = run.arrays.clock[0]
        return PolicyError(
            f"{where} scaler {scaler} is asked every {clock.interval_s:g} s, and would be more than "
            f"{layout.MOST_CHECKS:,} times before anything else happens: {next_thing(run)}; it should have a "
            "longer interval_s"
        )
    if status == BAD_ROUTE and route.engine >= 0 and route.tier >= 0 and not run.settings.router.moves_engines:
        return PolicyError(
            f"{where} router {router} moved engine {route.engine} to tier {route.tier}; a router that does so "
            "should be registered with moves_engines=True"
        )
    if status == BAD_ROUTE:
        r = run.arrays.clock[0].decided
        wrong = why_not(route, run.books.known.views, run.arrays.requests[r], len(run.settings.tiers))
        return PolicyError(
            f"{where} router {router} sent request {r} to engine {route.engine} (decode engine "
            f"{route.decode_engine}, line {route.line}, tier {route.tier}): {wrong}; it should name an engine that "
            "takes the request, or hold it in a line"
        )
    if status == BAD_MOVE:
        tiers, named = len(run.settings.tiers), run.books.moves["tier"]
        e = int(np.flatnonzero((named < -1) | (named >= tiers))[0])
        return PolicyError(
            f"{where} scaler {scaler} named tier {named[e]} for engine {e}, which there is not; tiers are -1 to "
            f"{tiers - 1}"
        )
    return PolicyError(
        f"{where} router {router} holds {run.arrays.clock[0].held} requests, and nothing more can happen; it "
        "should send a request to an engine that has nothing to do"
    )


def named_functions(run: Simulation) -> list[tuple[str, Compiled]]:
    """The compiled functions that a run calls, under the names that a user knows them by."""
    settings, gain = run.settings, run.scenario.gain
    named = [(f"scheduler {policy.label}", function) for policy in settings.schedulers
             for function in (policy.function, policy.victims, *(policy.halves or ()))]  # fmt: skip
    named += [(f"router {settings.router.label}", settings.router.function)]
    named += [(f"scaler {settings.scaler.label}", settings.scaler.function)]
    named += [(f"gain function {gain.name}", gain.function)]
    for pool in settings.cluster.pools:
        named += [(f"the device model of {pool.name}", pool.device.batch_s)]
        estimator = pool.estimator
        for function in (estimator.batch_s, estimator.exec_s, estimator.request_s):
            named += [(f"the estimator of {pool.name}", function)]
    return named


def wrong_time(run: Simulation, estimate: bool) -> str:
    """What is wrong with the duration or the estimate of the batch that an engine is to start."""
    arrays = run.arrays
    engine, sums = starting_engine(run), arrays.sums[0]
    pool, most = run.settings.cluster.pools[engine.kind], f"{layout.LATEST_S:g} s"
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


def starting_engine(run: Simulation) -> np.record:
    """The engine that was to start an iteration."""
    return run.arrays.engines[run.arrays.due[run.arrays.clock[0].starting]]


def next_thing(run: Simulation) -> str:
    """What would happen next, and when."""
    arrays, clock, incidents = run.arrays, run.arrays.clock[0], run.books.incidents
    coming: list[tuple[float, str]] = []
    if clock.events > 0:
        event = arrays.events[0]
        what = "the KV of request" if event.kind == layout.EVENT_KV_ARRIVAL else "an end of an iteration of engine"
        coming.append((float(event.time_s), f"{what} {event.index} comes"))
    if clock.next_arrival < len(arrays.requests):
        coming.append((float(arrays.outcomes[clock.next_arrival].ready_s), f"request {clock.next_arrival} comes"))
    if clock.next_incident < len(incidents):
        incident = incidents[clock.next_incident]
        kind = layout.INCIDENTS[incident.kind]
        coming.append((float(incident.time_s), f"the incident '{kind}' of engine {incident.engine} comes"))
    if not coming:
        return "all who are held wait for what engines have still to tell the router"
    time_s, what = min(coming)
    return f"{what} at {time_s:g} s"

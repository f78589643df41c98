"""PolyServe's router (sections 4.2 to 4.7): requests binned by TPOT, each to the fullest engine of its tier that still
keeps it in time, so that the last one empties; then to tighter tiers; then to a pending engine that has requests of
this tier; then to a new engine from the pool.

The steps are those of "Rule, exactly" in docs/systems/polyserve.md.
"""

import numpy as np

from servegym.baselines.routers.polyserve_forecast import (
    CLEAR_S,
    DECODING_S,
    FIELDS,
    PEAK,
    S_PER_TOKEN,
    admits,
    admits_idle,
    backlog_s,
    backlog_tokens,
    context_of,
    fits,
    has_memory,
    look_at,
    mean_output,
    peak_with,
    prefill_time,
)
from servegym.baselines.scalers.polyserve import tightest_tier
from servegym.simulator.compilation import kernel
from servegym.simulator.lines import tier_of
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.routing import takes, would_take
from servegym.simulator.signatures import router
from servegym.simulator.types import HOLD, POOL, ROLE_DECODE, ROLE_PREFILL


@kernel
def load_of(now_s, view, e, state):
    """Of engines of one tier the one with the highest load is taken first. Prefill: time that is waited for."""
    return backlog_s(view, now_s, e, state) if view.role == ROLE_PREFILL else state[e, DECODING_S]


@kernel
def fullest(now_s, r, tier, in_time, requests, known, output, budget, reserve, state, estimates):
    """The engine of the tier with the highest load that admits request r; in_time False: by iteration time and memory
    alone. -1: none does. Prefill engines serve all tiers: they belong to the request's own."""
    best, best_load = -1, -np.inf
    own = tier_of(requests[r], known.tiers)
    for e in range(known.views.shape[0]):
        view = known.views[e]
        at = own if view.role == ROLE_PREFILL and view.tier != POOL else view.tier
        if at != tier or not takes(view, requests[r]):
            continue
        load = load_of(now_s, view, e, state)
        if load <= best_load:
            continue
        tpot_s = known.tiers[tier].tpot_slo_s
        if in_time:
            admitted = admits(now_s, r, requests, known, output, budget, reserve, tpot_s, e, state, estimates)
        elif view.role == ROLE_PREFILL:
            admitted = view.prefills == 0
        else:
            admitted = fits(requests[r], output, reserve, tpot_s, e, known, state, estimates)
        if admitted:
            best, best_load = e, load
    return best


@kernel
def fullest_pending(now_s, r, requests, known, output, budget, reserve, state, estimates):
    """Of the pending engines whose requests belong to the tier of request r the one with the highest load that admits
    it in that tier; -1: none does."""
    best, best_load = -1, -np.inf
    own = tier_of(requests[r], known.tiers)
    tpot_s = known.tiers[own].tpot_slo_s
    for e in range(known.views.shape[0]):
        view = known.views[e]
        if not would_take(view, requests[r]) or tightest_tier(e, requests, known) != own:
            continue
        load = load_of(now_s, view, e, state)
        if load > best_load and admits(
            now_s, r, requests, known, output, budget, reserve, tpot_s, e, state, estimates
        ):  # fmt: skip
            best, best_load = e, load
    return best


@kernel
def emptiest_of_pool(request, views):
    """The engine of the pool with the fewest requests; -1: there is none."""
    best = -1
    for e in range(views.shape[0]):
        if views[e].tier != POOL or not takes(views[e], request):
            continue
        if best < 0 or views[e].requests < views[best].requests:
            best = e
    return best


@kernel
def can_still(now_s, r, requests, known, output, budget, estimates):
    """Whether request r could be in time on an engine with nothing to do, of its tier. Engines of a pool are alike."""
    tpot_s = known.tiers[tier_of(requests[r], known.tiers)].tpot_slo_s
    kind = -1
    for e in range(known.views.shape[0]):
        view = known.views[e]
        if view.kind == kind or not takes(view, requests[r]):
            continue
        kind = view.kind
        if admits_idle(now_s, requests[r], output, budget, tpot_s, e, known, estimates):
            return True
    return False


@kernel
def any_for_best_effort(now_s, r, requests, known, output, budget, reserve, state, estimates):
    """Where request r, which cannot be in time, does no harm: the pool, else by iteration time and memory alone from
    the loosest tier on, else an engine with nothing to do. -1: nowhere."""
    views, request = known.views, requests[r]
    for e in range(views.shape[0]):
        if views[e].tier == POOL and takes(views[e], request):
            room = has_memory(views[e], peak_with(request, output, e, state), reserve)
            if views[e].prefills == 0 if views[e].role == ROLE_PREFILL else room:
                return e
    for tier in range(known.tiers.shape[0] - 3, -1, -1):
        e = fullest(now_s, r, tier, False, requests, known, output, budget, reserve, state, estimates)
        if e >= 0:
            return e
    for e in range(views.shape[0]):
        if views[e].requests == 0 and takes(views[e], request):
            return e
    return -1


@kernel
def line_of(request, known):
    """Where it is held. To be prefilled on prefill engines it waits behind those that are to be decoded, which hold
    memory there; it is asked about again all the same."""
    for e in range(known.views.shape[0]):
        if known.views[e].role == ROLE_PREFILL and takes(known.views[e], request):
            return known.tiers.shape[0] - 2
    return tier_of(request, known.tiers)


@kernel
def none_is_busy(now_s, views):
    """Whether no engine runs anything: then nothing but this decision can bring anything about."""
    busy = 0
    for e in range(views.shape[0]):
        busy += views[e].busy_until_s > now_s
    return busy == 0


@kernel
def least_sent(request, views):
    """The engine with the fewest requests."""
    best = -1
    for e in range(views.shape[0]):
        if takes(views[e], request) and (best < 0 or views[e].requests < views[best].requests):
            best = e
    return best


@kernel
def note_prefill(now_s, request, budget, tpot_s, emptied, e, known, state, estimates):
    """When the prefills sent to engine e should be done, this one included. emptied: it gives up what it had."""
    view = known.views[e]
    if view.role == ROLE_DECODE:
        return
    if emptied:
        decodes, peak, left, start_s = 0, 0.0, 0.0, now_s
    else:
        decodes, peak = view.requests, state[e, PEAK]
        left, start_s = backlog_tokens(view, now_s, e, state), max(now_s, view.busy_until_s)
    _, s_per_token = prefill_time(context_of(request), budget, decodes, peak, tpot_s, view, e, estimates)
    if s_per_token < np.inf:
        state[e, CLEAR_S] = start_s + (left + context_of(request)) * s_per_token
        state[e, S_PER_TOKEN] = s_per_token


@router
def polyserve(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    budget, reserve, request, views = int(parameters[0]), parameters[2], requests[r], known.views
    output = mean_output(views, int(parameters[1]))
    own = tier_of(request, known.tiers)
    for e in range(views.shape[0]):
        if takes(views[e], request) or would_take(views[e], request):
            look_at(e, requests, known, output, budget, state, estimates, plan, order)
    route.line = line_of(request, known)
    if not can_still(now_s, r, requests, known, output, budget, estimates):
        route.line = known.tiers.shape[0] - 2
        route.engine = any_for_best_effort(now_s, r, requests, known, output, budget, reserve, state, estimates)
    else:
        for tier in range(own, -1, -1):  # lazy promotion
            if route.engine == HOLD:
                route.engine = fullest(
                    now_s, r, tier, True, requests, known, output, budget, reserve, state, estimates
                )  # fmt: skip
        if route.engine == HOLD:  # the tier grows
            route.engine = fullest_pending(
                now_s, r, requests, known, output, budget, reserve, state, estimates
            )  # fmt: skip
            if route.engine == HOLD:
                route.engine = emptiest_of_pool(request, views)
            if route.engine != HOLD:
                route.tier = own
    if route.engine == HOLD and none_is_busy(now_s, views):
        route.engine = least_sent(request, views)
    e = route.engine
    if e != HOLD:
        emptied = views[e].tier == POOL and route.tier == own
        tier = own if route.tier == own or views[e].tier == POOL or views[e].role == ROLE_PREFILL else views[e].tier
        note_prefill(
            now_s, request, budget, known.tiers[tier].tpot_slo_s, emptied, e, known, state, estimates
        )  # fmt: skip


register(
    Policy(
        "polyserve",
        "router",
        "The fullest engine of the request's TPOT tier that still keeps it in time; then tighter tiers, a pending one, "
        "the pool.",
        "PolyServe, section 4",
        polyserve,
        state=StateFields(engine=FIELDS),
        moves_engines=True,
        parameters=(
            Parameter("token_budget", 1024, "tokens in a batch of the engines", 1, 2**20, "tokens", integer=True,
                      log=True, source="PolyServe's worked example, section 4.7"),
            Parameter("output_tokens", 256, "length of an answer, as long as none has finished", 1, 2**20, "tokens",
                      integer=True, log=True),
            Parameter("memory_reserve", 0.05, "share of KV memory left free: forecasts are of average answers", 0, 0.9),
        ),
    )
)  # fmt: skip

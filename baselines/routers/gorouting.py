"""GoRouting, ProServe's router (Algorithm 2): send a request where it adds most gain.

Of the engines with nearly the most gain, a nearly idle one is taken, else the fullest one that is not heavily loaded,
so that room is left for long requests (section 4.3).
"""

import numpy as np

from servegym.baselines.relations import below
from servegym.baselines.routers.blind import STREAM, any_engine
from servegym.baselines.routers.ties import FIELDS, MEASURE, goes_first, is_below, send_to, send_to_least
from servegym.baselines.schedulers.slide_batching import ETA
from servegym.policy import (
    EMPTY_BATCH,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    StateFields,
    kernel,
    register,
    router,
    sort,
    takes,
    uniform,
)

GAIN, BEFORE_S, AFTER_S = range(3, 6)  # state per engine, after the FIELDS of ties; valid in one decision
SCRATCH = Scratch("exec_s", "gain", "gain_before", indices=("order",), ranks=("ranks",))  # per prefill of an engine

DECODES = ("once", "recurring")
ONCE, RECURRING = range(2)
FALLBACKS = ("random", "least-loaded")
RANDOM, LEAST_LOADED = range(2)
LOCAL_ORDERS = ("deadline", "arrival", "priority", "slide-batching")
BY_DEADLINE, BY_ARRIVAL, BY_PRIORITY, AS_SLIDE_BATCHING = range(4)

P = Parameters(
    Parameter("alpha", 0.9, "an engine is a candidate if the request adds at least this share of the most gain it adds "
              "anywhere", 0, 1, source="ProServe, Alg. 2 line 8; value: xLLM"),
    Parameter("lambda", 0.8, "an engine is heavily loaded if prefilling its queue, this request included, takes more "
              "than this share of the TTFT SLO", 0.1, 2, source="ProServe, Alg. 2 line 11; value: xLLM"),
    Parameter("mu", 0.1, "an engine is nearly idle if prefilling its queue takes less than this share of the TTFT SLO; "
              "below lambda", 0, 1, source="ProServe, Alg. 2 line 10; value: xLLM"),
    Parameter("eta", ETA, "least time budget of a batch", 0.005, 0.5, "s", log=True,
              source="ProServe, Alg. 1 line 7; value: as slide-batching"),
    Parameter("decodes", "once", "how the time of an engine's decodes counts beside its prefills: once, or in every "
              "batch (recurring)", choices=DECODES, source="ProServe, section 4.3"),
    Parameter("fallback", "random", "engine of a request that adds no gain anywhere: a random one, or the least "
              "loaded, as in the code", choices=FALLBACKS, source="ProServe, Alg. 2 line 19; xLLM"),
    Parameter("seed", 0, "seed of the random fallback", 0, 2**31 - 1, integer=True),
    Parameter("local_order", "deadline", "order in which prefill-only engines are assumed to run their requests",
              choices=LOCAL_ORDERS,
              source="ProServe, section 4.3: that of the local scheduler"),
)  # fmt: skip


@kernel
def mean_decode_s(context, e):
    """Return a_d * mean context + b_d, the time that a decode of this engine adds to a batch, s; 0: it has none."""
    snapshot, estimates = context.known.snapshots[e], context.estimates
    if snapshot.decodes == 0:
        return 0.0
    cached = snapshot.decode_tokens // snapshot.decodes
    return estimates.request_s[snapshot.pool](1, cached, True, estimates.coefficients[e])


@kernel
def prompt_s(context, request, e):
    """Return exec of the whole prompt at engine e, as a router does not know how much of it is computed, s."""
    tokens, estimates = context.requests[request].prompt_tokens, context.estimates
    return estimates.request_s[context.known.snapshots[e].pool](tokens, 0, False, estimates.coefficients[e])


@kernel
def work_s(context, e):
    """Return the sum of exec over the prompts that engine e has yet to prefill, s."""
    requests, prefilling, snapshot = context.requests, context.known.prefilling[e], context.known.snapshots[e]
    request_s, coefficients = context.estimates.request_s[snapshot.pool], context.estimates.coefficients[e]
    total_s = 0.0
    for k in range(snapshot.prefills):
        total_s += request_s(requests[prefilling[k]].prompt_tokens, 0, False, coefficients)
    return total_s


@kernel
def finish_in_s(context, e, total_s, budget_s, decodes):
    """Return EXEC, the estimated time until a queue with total_s of work is done (Eq. 8, n_d decodes), s."""
    snapshot, estimates = context.known.snapshots[e], context.estimates
    constant_s = estimates.batch_s[snapshot.pool](EMPTY_BATCH[0], estimates.coefficients[e])
    decoding_s = snapshot.decodes * mean_decode_s(context, e)
    if decodes == RECURRING:  # each batch includes the decodes
        if budget_s <= constant_s + decoding_s:
            return np.inf
        time_s = budget_s / (budget_s - constant_s - decoding_s) * total_s
    elif budget_s <= constant_s:
        return np.inf
    else:
        time_s = budget_s / (budget_s - constant_s) * total_s + decoding_s
    return max(0.0, time_s - (context.now_s - snapshot.changed_s))


@kernel
def in_time(record, finish_s):
    """Return the gain of the request's first token if finish_s is in time, else 0."""
    return record.first_token_gain if finish_s < record.first_deadline_s else 0.0


@kernel
def budget_of(context, e, start_s, eta):
    """Return max(min(smallest remain among prefills, TPOT SLO), eta), s. start_s: initial value of the minimum."""
    requests, prefilling, now_s, least_s = context.requests, context.known.prefilling[e], context.now_s, start_s
    for k in range(context.known.snapshots[e].prefills):
        record = requests[prefilling[k]]
        least_s = min(least_s, record.first_deadline_s - now_s, record.tpot_slo_s)
    return max(least_s, eta)


@kernel
def look_at(context, request, e, p):
    """Return (gain change, EXEC without the request, EXEC with it) of engine e."""
    now_s, requests, prefilling = context.now_s, context.requests, context.known.prefilling[e]
    record = requests[request]
    remain_s = record.first_deadline_s - now_s
    total_s = work_s(context, e)
    budget_s = budget_of(context, e, record.tpot_slo_s, p.eta)
    before_s = finish_in_s(context, e, total_s, budget_s, p.decodes)
    with_s = total_s + prompt_s(context, request, e)
    budget_s = budget_of(context, e, min(record.tpot_slo_s, remain_s), p.eta)
    after_s = finish_in_s(context, e, with_s, budget_s, p.decodes)
    gain = in_time(record, now_s + after_s)
    for k in range(context.known.snapshots[e].prefills):  # differences: an unchanged gain adds exactly 0
        queued = requests[prefilling[k]]
        gain += in_time(queued, now_s + after_s) - in_time(queued, now_s + before_s)
    return gain, before_s, after_s


@kernel
def nth(context, request, e, k):
    """Return the k-th of the requests that engine e has yet to prefill, with `request` as the last."""
    return request if k == context.known.snapshots[e].prefills else context.known.prefilling[e, k]


@kernel
def rank_locally(record, rank, exec_s, local_order, left_s):
    """Rank a prefill as the local scheduler does. left_s: the request's deadline minus the end of all prefills."""
    rank.tier = record.priority if local_order == BY_PRIORITY else 0
    rank.key = record.arrival_s if local_order == BY_ARRIVAL else record.first_deadline_s
    if local_order == AS_SLIDE_BATCHING:  # urgent ones by density, then the others by deadline; gamma is 1
        rank.tier = 0 if left_s < 0.0 else 1
        if left_s < 0.0:
            rank.key = -np.inf if exec_s == 0.0 else -record.first_token_gain / exec_s


@kernel
def run_in_order(context, request, e, length, local_order):
    """Return EXEC of the first `length` of `nth`, in local order; write their gains, 0 if late, to s.gain."""
    s, now_s, snapshot, estimates = SCRATCH.read(context), context.now_s, context.known.snapshots[e], context.estimates
    constant_s = estimates.batch_s[snapshot.pool](EMPTY_BATCH[0], estimates.coefficients[e])
    since_s, total_s = now_s - snapshot.changed_s, 0.0
    for k in range(length):
        total_s += s.exec_s[k] + constant_s
        s.order[k] = k
    end_s = now_s + max(0.0, total_s - since_s)
    for k in range(length):
        record = context.requests[nth(context, request, e, k)]
        rank_locally(record, s.ranks[k], s.exec_s[k], local_order, record.first_deadline_s - end_s)
    sort(s.order, s.ranks, length)
    done_s = 0.0
    for i in range(length):
        k = s.order[i]
        done_s += s.exec_s[k] + constant_s
        s.gain[k] = in_time(context.requests[nth(context, request, e, k)], now_s + max(0.0, done_s - since_s))
    return max(0.0, total_s - since_s)


@kernel
def gain_on_prefill_engine(context, request, e, p):
    """Do as `look_at` for a prefill engine, which runs requests one after the other in local order (phi_p)."""
    n, s = context.known.snapshots[e].prefills, SCRATCH.read(context)
    for k in range(n + 1):
        s.exec_s[k] = prompt_s(context, nth(context, request, e, k), e)
    before_s = run_in_order(context, request, e, n, p.local_order)
    for k in range(n):
        s.gain_before[k] = s.gain[k]
    after_s = run_in_order(context, request, e, n + 1, p.local_order)
    gain = 0.0
    for i in range(n + 1):  # differences, as above
        k = s.order[i]
        gain += s.gain[k] - s.gain_before[k] if k < n else s.gain[k]
    return gain, before_s, after_s


@router
def gorouting(context, request, route):
    p, state, snapshots, record = P.read(context), context.state, context.known.snapshots, context.requests[request]
    if record.computed_tokens > 0:
        for e in range(snapshots.shape[0]):  # line 20: most free blocks
            state[e, MEASURE] = -snapshots[e].free_blocks
        send_to_least(context, request, route)
        return
    most = -np.inf
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], record):
            continue
        if snapshots[e].role == ROLE_PREFILL:
            gain, before_s, after_s = gain_on_prefill_engine(context, request, e, p)
        else:
            gain, before_s, after_s = look_at(context, request, e, p)
        state[e, GAIN], state[e, BEFORE_S], state[e, AFTER_S] = gain, before_s, after_s
        most = max(most, gain)
    if most <= 0.0 and p.fallback == RANDOM:
        send_to(any_engine(uniform(p.seed, STREAM, request), record, snapshots), state, route)
        return
    slo_s = record.ttft_slo_s
    idlest, fullest, least = -1, -1, -1  # least EXEC in L, most in C - H, least in C
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], record) or (most > 0.0 and state[e, GAIN] < p.alpha * most):
            continue
        before_s = state[e, BEFORE_S]
        if before_s < p.mu * slo_s and (idlest < 0 or is_below(snapshots, state, e, idlest, BEFORE_S)):
            idlest = e
        if state[e, AFTER_S] <= p.lambda_ * slo_s and (fullest < 0 or is_above(snapshots, state, e, fullest)):
            fullest = e
        if least < 0 or is_below(snapshots, state, e, least, BEFORE_S):
            least = e
    if most > 0.0 and idlest >= 0:
        send_to(idlest, state, route)
    elif most > 0.0 and fullest >= 0:
        send_to(fullest, state, route)
    else:
        send_to(least, state, route)


@kernel
def is_above(snapshots, state, a, b):
    """Return whether engine a has more work than engine b."""
    if state[a, BEFORE_S] != state[b, BEFORE_S]:
        return state[a, BEFORE_S] > state[b, BEFORE_S]
    return goes_first(snapshots, state, a, b)


gorouting_policy = register(
    Policy(
        "gorouting",
        "router",
        "Where the request adds most first-token gain; of such engines an idle one, or the fullest not too full.",
        "ProServe, Algorithm 2",
        gorouting,
        state=StateFields(engine=(*FIELDS, "gain", "before_s", "after_s")),
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
below(gorouting_policy, "mu", "lambda", "ProServe, Alg. 2 lines 10 and 11: nearly idle engines are not heavily loaded")

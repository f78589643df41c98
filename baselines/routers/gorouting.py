"""GoRouting, ProServe's router (Algorithm 2): where a request adds most gain, and not to the least loaded of these
engines unless one is nearly idle, so that room is left for long requests (section 4.3).
"""

import numpy as np

from servegym.baselines.relations import below
from servegym.baselines.routers.blind import STREAM, any_engine
from servegym.baselines.routers.ties import FIELDS, MEASURE, goes_first, is_below, send_to, send_to_least
from servegym.baselines.schedulers.slide_batching import ETA
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.compilation import kernel
from servegym.simulator.ordering import sort
from servegym.simulator.policies import Parameter, Policy, StateFields, register
from servegym.simulator.random import uniform
from servegym.simulator.routing import takes
from servegym.simulator.signatures import router
from servegym.simulator.types import ROLE_PREFILL

ONCE, RECURRING = range(2)
RANDOM, LEAST_LOADED = range(2)
BY_DEADLINE, BY_ARRIVAL, BY_PRIORITY, AS_SLIDE_BATCHING = range(4)


@kernel
def mean_decode_s(view, estimates, e):
    """a_d * mean context + b_d: what one decode of this engine adds to a batch; 0: there is none."""
    if view.decodes == 0:
        return 0.0
    cached = view.decode_tokens // view.decodes
    return estimates.request_s[view.kind](1, cached, True, estimates.coefficients[e])


@kernel
def work_s(requests, record, view, e, estimates):
    """Sum of exec over the queue record: whole prompts, since a router does not know what is computed."""
    total_s = 0.0
    for k in range(view.prefills):
        total_s += estimates.request_s[view.kind](
            requests[record[k]].prompt_tokens, 0, False, estimates.coefficients[e]
        )
    return total_s


@kernel
def finish_in_s(now_s, view, total_s, budget_s, decodes, e, estimates):
    """Estimated time until a queue of this work is done (Eq. 8, n_d decodes): EXEC."""
    constant_s = estimates.batch_s[view.kind](EMPTY_BATCH[0], estimates.coefficients[e])
    decoding_s = view.decodes * mean_decode_s(view, estimates, e)
    if decodes == RECURRING:  # every batch holds the decodes
        if budget_s <= constant_s + decoding_s:
            return np.inf
        time_s = budget_s / (budget_s - constant_s - decoding_s) * total_s
    elif budget_s <= constant_s:
        return np.inf
    else:
        time_s = budget_s / (budget_s - constant_s) * total_s + decoding_s
    return max(0.0, time_s - (now_s - view.changed_s))


@kernel
def in_time(request, finish_s):
    """The weight of its first token if it is done in time, else 0."""
    return request.first_token_gain if finish_s < request.first_deadline_s else 0.0


@kernel
def budget_of(requests, record, n, now_s, start_s, eta):
    """max(min(smallest remain among prefills, TPOT SLO), eta). start_s: the smallest of the two so far."""
    least_s = start_s
    for k in range(n):
        request = requests[record[k]]
        least_s = min(least_s, request.first_deadline_s - now_s, request.tpot_slo_s)
    return max(least_s, eta)


@kernel
def look_at(now_s, r, requests, views, records, e, eta, decodes, estimates):
    """Engine e: (gain change, EXEC without the request, EXEC with it)."""
    view, record, request = views[e], records[e], requests[r]
    n = view.prefills
    remain_s = request.first_deadline_s - now_s
    total_s = work_s(requests, record, view, e, estimates)
    budget_s = budget_of(requests, record, n, now_s, request.tpot_slo_s, eta)
    before_s = finish_in_s(now_s, view, total_s, budget_s, decodes, e, estimates)
    with_s = total_s + estimates.request_s[view.kind](request.prompt_tokens, 0, False, estimates.coefficients[e])
    budget_s = budget_of(requests, record, n, now_s, min(request.tpot_slo_s, remain_s), eta)
    after_s = finish_in_s(now_s, view, with_s, budget_s, decodes, e, estimates)
    gain = in_time(request, now_s + after_s)
    for k in range(n):  # differences, so that what stays as it is adds exactly nothing
        queued = requests[record[k]]
        gain += in_time(queued, now_s + after_s) - in_time(queued, now_s + before_s)
    return gain, before_s, after_s


@kernel
def nth(k, n, r, requests, record):
    """Of the n requests of a queue record, and request r after them."""
    return requests[r] if k == n else requests[record[k]]


@kernel
def rank(request, local_order, left_s, line):
    """Rank a prefill as the local scheduler does. left_s: until the request's deadline less until all are done."""
    line.tier = request.priority if local_order == BY_PRIORITY else 0
    line.key = request.arrival_s if local_order == BY_ARRIVAL else request.first_deadline_s
    if local_order == AS_SLIDE_BATCHING:  # urgent ones by density, then the others by deadline; gamma is 1
        line.tier = 0 if left_s < 0.0 else 1
        if left_s < 0.0:
            line.key = -np.inf if line.exec_s == 0.0 else -request.first_token_gain / line.exec_s


@kernel
def run_in_order(now_s, since_s, r, requests, record, n, length, constant_s, local_order, plan, order):
    """EXEC of the first `length` of a record and request r; each one's weight, if it is done in time, is its key."""
    total_s = 0.0
    for k in range(length):
        total_s += plan[k].exec_s + constant_s
        order[k] = k
    end_s = now_s + max(0.0, total_s - since_s)
    for k in range(length):
        request = nth(k, n, r, requests, record)
        rank(request, local_order, request.first_deadline_s - end_s, plan[k])
    sort(order, plan, length)
    done_s = 0.0
    for i in range(length):
        line = plan[order[i]]
        done_s += line.exec_s + constant_s
        line.key = in_time(nth(order[i], n, r, requests, record), now_s + max(0.0, done_s - since_s))
    return max(0.0, total_s - since_s)


@kernel
def look_at_prefill_engine(now_s, r, requests, view, record, estimates, e, local_order, plan, order):
    """The same for an engine that prefills only: requests run one after the other in its local order (phi_p)."""
    constant_s = estimates.batch_s[view.kind](EMPTY_BATCH[0], estimates.coefficients[e])
    n, since_s = view.prefills, now_s - view.changed_s
    for k in range(n + 1):
        tokens = nth(k, n, r, requests, record).prompt_tokens
        plan[k].exec_s = estimates.request_s[view.kind](tokens, 0, False, estimates.coefficients[e])
    before_s = run_in_order(now_s, since_s, r, requests, record, n, n, constant_s, local_order, plan, order)
    for k in range(n):
        plan[k].victim_key = plan[k].key
    after_s = run_in_order(now_s, since_s, r, requests, record, n, n + 1, constant_s, local_order, plan, order)
    gain = 0.0
    for i in range(n + 1):  # differences, as above
        k = order[i]
        gain += plan[k].key - plan[k].victim_key if k < n else plan[k].key
    return gain, before_s, after_s


GAIN, BEFORE_S, AFTER_S = range(3, 6)  # after the FIELDS of ties: of the engine, in this decision


@router
def gorouting(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views, records = known.views, known.records
    if requests[r].computed_tokens > 0:
        for e in range(views.shape[0]):  # line 20: most free blocks
            state[e, MEASURE] = -views[e].free_blocks
        send_to_least(views, requests[r], state, route)
        return
    alpha, lambda_, mu, eta = parameters[0], parameters[1], parameters[2], parameters[3]
    most = -np.inf
    for e in range(views.shape[0]):
        if not takes(views[e], requests[r]):
            continue
        if views[e].role == ROLE_PREFILL:
            gain, before_s, after_s = look_at_prefill_engine(
                now_s, r, requests, views[e], records[e], estimates, e, int(parameters[7]), plan, order
            )  # fmt: skip
        else:
            gain, before_s, after_s = look_at(
                now_s, r, requests, views, records, e, eta, int(parameters[4]), estimates
            )  # fmt: skip
        state[e, GAIN], state[e, BEFORE_S], state[e, AFTER_S] = gain, before_s, after_s
        most = max(most, gain)
    if most <= 0.0 and int(parameters[5]) == RANDOM:
        send_to(any_engine(uniform(int(parameters[6]), STREAM, r), requests[r], views), state, route)
        return
    slo_s = requests[r].ttft_slo_s
    idlest, fullest, least = -1, -1, -1  # least EXEC in L, most in C - H, least in C
    for e in range(views.shape[0]):
        if not takes(views[e], requests[r]) or (most > 0.0 and state[e, GAIN] < alpha * most):
            continue
        before_s = state[e, BEFORE_S]
        if before_s < mu * slo_s and (idlest < 0 or is_below(views, state, e, idlest, BEFORE_S)):
            idlest = e
        if state[e, AFTER_S] <= lambda_ * slo_s and (fullest < 0 or is_above(views, state, e, fullest)):
            fullest = e
        if least < 0 or is_below(views, state, e, least, BEFORE_S):
            least = e
    if most > 0.0 and idlest >= 0:
        send_to(idlest, state, route)
    elif most > 0.0 and fullest >= 0:
        send_to(fullest, state, route)
    else:
        send_to(least, state, route)


@kernel
def is_above(views, state, a, b):
    """Whether engine a has more to do than engine b."""
    if state[a, BEFORE_S] != state[b, BEFORE_S]:
        return state[a, BEFORE_S] > state[b, BEFORE_S]
    return goes_first(views, state, a, b)


gorouting_policy = register(
    Policy(
        "gorouting",
        "router",
        "Where the request adds most first-token gain; of such engines an idle one, or the fullest not too full.",
        "ProServe, Algorithm 2",
        gorouting,
        state=StateFields(engine=(*FIELDS, "gain", "before_s", "after_s")),
        parameters=(
            Parameter("alpha", 0.9, "share of the largest gain change that makes a candidate", 0, 1,
                      source="ProServe, Alg. 2 line 8; value: xLLM"),
            Parameter("lambda", 0.8, "share of the TTFT SLO beyond which an engine is heavily loaded", 0.1, 2,
                      source="ProServe, Alg. 2 line 11; value: xLLM"),
            Parameter("mu", 0.1, "share of the TTFT SLO below which it is nearly idle; below lambda", 0, 1,
                      source="ProServe, Alg. 2 line 10; value: xLLM"),
            Parameter("eta", ETA, "least latency budget of a batch", 0.005, 0.5, "s", log=True,
                      source="ProServe, Alg. 1 line 7; value: as slide-batching"),
            Parameter("decodes", "once", "time of the decodes beside the prefills: once, or in every batch",
                      choices=("once", "recurring"), source="ProServe, section 4.3"),
            Parameter("fallback", "random", "where it gains nothing anywhere; least-loaded: the code",
                      choices=("random", "least-loaded"), source="ProServe, Alg. 2 line 19; xLLM"),
            Parameter("seed", 0, "of the random fallback", 0, 2**31 - 1, integer=True),
            Parameter("local_order", "deadline", "in which prefill engines are taken to run their requests",
                      choices=("deadline", "arrival", "priority", "slide-batching"),
                      source="ProServe, section 4.3: that of the local scheduler"),
        ),
    )
)  # fmt: skip
below(gorouting_policy, "mu", "lambda", "ProServe, Alg. 2 lines 10 and 11: nearly idle engines are not heavily loaded")

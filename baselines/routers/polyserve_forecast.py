"""What PolyServe's router foresees of an engine: its largest KV, its iterations, and when a prompt would be done
(sections 4.5 to 4.7)."""

import numpy as np

from servegym.baselines.prefill_time import prefill_alone_s
from servegym.simulator import batches
from servegym.simulator.compilation import kernel
from servegym.simulator.ordering import sort
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.types import ROLE_DECODE, ROLE_PREFILL

# Numbers kept of each engine. seen: version of its view at which the next three were worked out, plus 1. peak_tokens:
# largest KV to come. longer_tokens: the same with a request of no tokens that stays as long as any, less what it has at
# first. decoding_s: time of an iteration in which all decode with the largest KV. clear_s: when what was sent there for
# prefill should be done, at s_per_token, as foreseen at the last sending. least_tokens: what of it cannot be done yet.
FIELDS = ("seen", "peak_tokens", "longer_tokens", "decoding_s", "clear_s", "s_per_token", "least_tokens")
SEEN, PEAK, LONGER, DECODING_S, CLEAR_S, S_PER_TOKEN, LEAST = range(7)


@kernel
def mean_output(views, at_first):
    """Mean output tokens of all that have finished, rounded up."""
    finished, tokens = 0, 0
    for e in range(views.shape[0]):
        finished += views[e].finished
        tokens += views[e].finished_tokens
    return at_first if finished == 0 else (tokens + finished - 1) // finished


@kernel
def context_of(request):
    return request.prompt_tokens + request.emitted_tokens


@kernel
def to_come(request, output):
    """Tokens that the request will emit if its answer is of average length; past that, one."""
    return max(1, output - request.emitted_tokens)


@kernel
def nth(known, e, k):
    """The requests of an engine by when they will have finished, as a rule: first those with a token, in the order
    heard, then the queue record."""
    decodes = known.views[e].decodes
    return known.running[e, k] if k < decodes else known.records[e, k - decodes]


@kernel
def look_at(e, requests, known, output, budget, state, estimates, plan, order):
    """Bring the numbers of engine e up to date, if its view has changed.

    Requests run in step, a token an iteration, and leave when they have emitted what is to come: KV grows until one
    leaves, so it is largest at such a time. From the last to leave back to the first: sum over those still there of
    (context - 1) + their number x iterations.
    """
    view = known.views[e]
    if state[e, SEEN] == view.version + 1:
        return
    state[e, SEEN] = view.version + 1
    n = view.decodes + view.prefills
    peak, longer, tokens, later = 0, 0, 0, output
    in_order = True
    for k in range(n - 1, -1, -1):
        request = requests[nth(known, e, k)]
        iterations = to_come(request, output)
        if iterations > later:
            in_order = False
            break
        later = iterations
        tokens += context_of(request) - 1
        peak = max(peak, tokens + (n - k) * iterations)
        longer = max(longer, tokens + (n - k + 1) * iterations)
    if not in_order:
        peak, longer = sorted_peaks(e, n, requests, known, output, plan, order)
    state[e, PEAK], state[e, LONGER] = peak, longer
    state[e, DECODING_S] = decoding_s(view, n, peak, e, estimates)
    longest = 0
    for k in range(view.prefills):
        longest = max(longest, context_of(requests[known.records[e, k]]))
    # None there has its token: no more is done than the batch that is running, and chunks of a prompt that is longer.
    state[e, LEAST] = max(0, view.prefill_tokens - budget - (longest if longest > budget else 0))


@kernel
def sorted_peaks(e, n, requests, known, output, plan, order):
    """The same where requests do not leave in the order of the lists."""
    for k in range(n):
        order[k] = k
        plan[k].tier = 0
        plan[k].key = to_come(requests[nth(known, e, k)], output)
    sort(order, plan, n)
    peak, longer, tokens = 0, 0, 0
    for i in range(n - 1, -1, -1):
        request = requests[nth(known, e, order[i])]
        iterations = to_come(request, output)
        tokens += context_of(request) - 1
        peak = max(peak, tokens + (n - i) * iterations)
        longer = max(longer, tokens + (n - i + 1) * iterations)
    return peak, longer


@kernel
def set_decodes(batch, n, tokens):
    """A batch of n decodes with so many tokens cached in all."""
    batches.clear(batch)
    batch.decode_requests = n
    if n > 0:
        batch.decode_cached_tokens = tokens
        batch.longest_decode_cached = tokens / n


@kernel
def decoding_s(view, n, tokens, e, estimates):
    """Estimated time of an iteration of n decodes."""
    batch = estimates.scratch[0]
    set_decodes(batch, n, tokens)
    return estimates.batch_s[view.kind](batch, estimates.coefficients[e])


@kernel
def peak_with(request, output, e, state):
    """Largest KV of engine e if the request joins it: it is there at the peak unless it is the first to leave."""
    alone = context_of(request) - 1 + to_come(request, output)
    return int(max(state[e, LONGER] + context_of(request) - 1, alone))


@kernel
def has_memory(view, tokens, reserve):
    """Whether the KV of its requests and one more, so large, fits with a reserve; an empty engine takes any request."""
    blocks = tokens / view.block_tokens + view.requests + 1  # a last one of each is not full
    return view.requests == 0 or blocks <= (1.0 - reserve) * view.total_blocks


@kernel
def fits(request, output, reserve, tpot_s, e, known, state, estimates):
    """Whether engine e has memory for the request, and iterations stay below the TPOT when all decode: section 4.5."""
    view = known.views[e]
    peak = peak_with(request, output, e, state)
    return has_memory(view, peak, reserve) and decoding_s(view, view.requests + 1, peak, e, estimates) < tpot_s


@kernel
def chunk_s(chunk, tokens, decodes, decode_tokens, view, e, estimates):
    """Estimated time of the iteration in which the last chunk of a prefill runs beside the decodes."""
    batch = estimates.scratch[0]
    set_decodes(batch, decodes, decode_tokens)
    batches.add(batch, chunk, max(0, tokens - chunk), False)
    return estimates.batch_s[view.kind](batch, estimates.coefficients[e])


@kernel
def largest_chunk(tokens, most, decodes, decode_tokens, tpot_s, view, e, estimates):
    """The largest chunk that can be kept to the end of the prefill with iterations below the TPOT; 0: none."""
    if most < 1 or chunk_s(1, tokens, decodes, decode_tokens, view, e, estimates) >= tpot_s:
        return 0
    if chunk_s(most, tokens, decodes, decode_tokens, view, e, estimates) < tpot_s:
        return most
    kept, too_much = 1, most
    while too_much - kept > 1:
        middle = (kept + too_much) // 2
        if chunk_s(middle, tokens, decodes, decode_tokens, view, e, estimates) < tpot_s:
            kept = middle
        else:
            too_much = middle
    return kept


@kernel
def prefill_time(tokens, budget, decodes, decode_tokens, tpot_s, view, e, estimates):
    """Seconds that a prefill takes once it is its turn, and seconds a token while others run too (section 4.7); inf:
    it cannot run."""
    if view.role == ROLE_PREFILL:  # dynamic chunking
        batch, batch_s, coefficients = estimates.scratch[0], estimates.batch_s[view.kind], estimates.coefficients[e]
        alone_s = prefill_alone_s(tokens, 0, budget, batch, batch_s, coefficients)
        full = max(tokens, budget)
        return alone_s, prefill_alone_s(full, 0, budget, batch, batch_s, coefficients) / full
    chunk = largest_chunk(tokens, budget - decodes, decodes, decode_tokens, tpot_s, view, e, estimates)
    if chunk == 0:
        return np.inf, np.inf
    iteration_s = chunk_s(chunk, tokens, decodes, decode_tokens, view, e, estimates)
    s_per_token = iteration_s / chunk
    if chunk > tokens:
        iteration_s = chunk_s(tokens, tokens, decodes, decode_tokens, view, e, estimates)
    return ((tokens + chunk - 1) // chunk) * iteration_s, s_per_token


@kernel
def backlog_s(view, now_s, e, state):
    """Time until what was sent to engine e for prefill should be done, after its running iteration."""
    if view.prefills == 0:
        return 0.0
    as_sent_s = state[e, CLEAR_S] - max(now_s, view.busy_until_s)
    return max(0.0, as_sent_s, state[e, LEAST] * state[e, S_PER_TOKEN])


@kernel
def backlog_tokens(view, now_s, e, state):
    """What should be left of the prompts that were sent to engine e, after its running iteration."""
    left_s = backlog_s(view, now_s, e, state)
    return 0.0 if left_s == 0.0 else min(view.prefill_tokens, left_s / state[e, S_PER_TOKEN])


@kernel
def first_token_in_time(now_s, r, requests, known, own_s, s_per_token, e, state):
    """Whether the prefill of request r at engine e would be in time, and make none late that is in time without it.

    The engine prefills by deadline; those whose deadline has passed come last, and should be all but done.
    """
    view, request = known.views[e], requests[r]
    start_s, due_s = max(now_s, view.busy_until_s), next_deadline_s(request)
    if start_s + own_s >= due_s:
        return False
    ahead, behind = 0, 0
    for k in range(view.prefills):
        other = requests[known.records[e, k]]
        if now_s < next_deadline_s(other):
            if next_deadline_s(other) <= due_s:
                ahead += context_of(other)
            else:
                behind += context_of(other)
    computed = max(0.0, ahead + behind - backlog_tokens(view, now_s, e, state))  # of the first ones
    done_s = start_s + own_s + max(0.0, ahead - computed) * s_per_token
    if done_s >= due_s:
        return False
    if behind == 0:
        return True
    for k in range(view.prefills):
        other_s = next_deadline_s(requests[known.records[e, k]])
        if other_s <= due_s or other_s <= now_s:
            continue
        until = ahead  # tokens up to this one
        for i in range(view.prefills):
            between_s = next_deadline_s(requests[known.records[e, i]])
            if due_s < between_s <= other_s and now_s < between_s:
                until += context_of(requests[known.records[e, i]])
        without_s = start_s + max(0.0, until - computed) * s_per_token
        if without_s < other_s <= without_s + own_s:
            return False
    return True


@kernel
def admits(now_s, r, requests, known, output, budget, reserve, tpot_s, e, state, estimates):
    """Whether engine e can take request r so that it and those there stay in time."""
    view, request = known.views[e], requests[r]
    if view.role != ROLE_PREFILL and not fits(request, output, reserve, tpot_s, e, known, state, estimates):
        return False
    if view.role == ROLE_DECODE:  # the wait for the running iteration, and one with it (section 4.6)
        peak = peak_with(request, output, e, state)
        iteration_s = decoding_s(view, view.requests + 1, peak, e, estimates)
        return max(now_s, view.busy_until_s) + iteration_s < next_deadline_s(request)
    if max(now_s, view.busy_until_s) >= next_deadline_s(request):
        return False
    own_s, s_per_token = prefill_time(
        context_of(request), budget, view.requests, state[e, PEAK], tpot_s, view, e, estimates
    )  # fmt: skip
    return own_s < np.inf and first_token_in_time(now_s, r, requests, known, own_s, s_per_token, e, state)


@kernel
def admits_idle(now_s, request, output, budget, tpot_s, e, known, estimates):
    """Whether engine e could take the request in time if it had nothing else."""
    view = known.views[e]
    context, due_s = context_of(request), next_deadline_s(request)
    if view.role != ROLE_PREFILL:
        iteration_s = decoding_s(view, 1, context - 1 + to_come(request, output), e, estimates)
        if iteration_s >= tpot_s:
            return False
        if view.role == ROLE_DECODE:
            return now_s + iteration_s < due_s
    own_s, _ = prefill_time(context, budget, 0, 0, tpot_s, view, e, estimates)
    return now_s + own_s < due_s

"""Which requests PolyServe's router admits to an engine: those that fit and stay in time, and make none late that is in
time (sections 4.5 to 4.7).
"""

import numpy as np

from servegym.baselines.routers.polyserve_forecast import (
    ASKED,
    ASKED_LENGTH,
    CLEAR_S,
    LEAST,
    OWN_S,
    OWN_S_PER_TOKEN,
    PEAK,
    S_PER_TOKEN,
    SEEN,
    decoding_s,
    fits,
    peak_with,
    prefill_time,
    to_come,
    tokens_of,
)
from servegym.simulator.compilation import kernel
from servegym.simulator.held_queues import tier_of
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.types import ROLE_DECODE, ROLE_PREFILL, TIERS


@kernel
def is_known(context, e, at, record, tpot_s, assumed):
    """Whether what engine e's numbers from `at` on keep is of this request, and of the engine as it is; from now on it
    is to be."""
    row, seen, tokens, left = context.state[e], context.state[e, SEEN], tokens_of(record), to_come(record, assumed)
    known = row[at] == seen and row[at + 1] == tokens and row[at + 2] == left and row[at + 3] == tpot_s
    known = known and row[at + 4] == assumed.token_budget and row[at + 5] == assumed.memory_reserve
    if not known:
        row[at], row[at + 1], row[at + 2], row[at + 3] = seen, tokens, left, tpot_s
        row[at + 4], row[at + 5] = assumed.token_budget, assumed.memory_reserve
    return known


@kernel
def fits_beside(context, e, record, tpot_s, assumed):
    """`fits` of a request for best effort."""
    at = ASKED + ASKED_LENGTH * TIERS
    if not is_known(context, e, at, record, tpot_s, assumed):
        context.state[e, at + OWN_S] = 0.0 if fits(context, e, record, tpot_s, assumed) else np.inf
    return context.state[e, at + OWN_S] < np.inf


@kernel
def prefill_beside(context, e, record, tpot_s, assumed):
    """`prefill_time` of a request beside all that engine e has; inf: it does not fit there."""
    row, snapshot = context.state[e], context.known.snapshots[e]
    at = ASKED + ASKED_LENGTH * tier_of(record, context.known.tiers)
    if not is_known(context, e, at, record, tpot_s, assumed):
        own_s, s_per_token = np.inf, np.inf
        if snapshot.role == ROLE_PREFILL or fits(context, e, record, tpot_s, assumed):
            tokens, decodes = tokens_of(record), snapshot.requests
            own_s, s_per_token = prefill_time(context, e, tokens, decodes, row[PEAK], tpot_s, assumed.token_budget)
        row[at + OWN_S], row[at + OWN_S_PER_TOKEN] = own_s, s_per_token
    return row[at + OWN_S], row[at + OWN_S_PER_TOKEN]


@kernel
def backlog_s(context, e):
    """Time until what was sent to engine e for prefill should be done, after its running iteration."""
    snapshot, state = context.known.snapshots[e], context.state
    if snapshot.prefills == 0:
        return 0.0
    as_sent_s = state[e, CLEAR_S] - max(context.now_s, snapshot.busy_until_s)
    return max(0.0, as_sent_s, state[e, LEAST] * state[e, S_PER_TOKEN])


@kernel
def backlog_tokens(context, e):
    """What should be left of the prompts that were sent to engine e, after its running iteration."""
    left_s = backlog_s(context, e)
    sent_tokens = context.known.snapshots[e].prefill_tokens
    return 0.0 if left_s == 0.0 else min(sent_tokens, left_s / context.state[e, S_PER_TOKEN])


@kernel
def first_token_in_time(context, request, e, own_s, s_per_token):
    """Whether the prefill of the request at engine e would be in time, and make none late that is in time without it.

    The engine prefills by deadline; those whose deadline has passed come last, and should be all but done.
    """
    now_s, requests, known = context.now_s, context.requests, context.known
    snapshot, prefilling = known.snapshots[e], known.prefilling[e]
    start_s, due_s = max(now_s, snapshot.busy_until_s), next_deadline_s(requests[request])
    if start_s + own_s >= due_s:
        return False
    ahead, behind = 0, 0
    for k in range(snapshot.prefills):
        other = requests[prefilling[k]]
        if now_s < next_deadline_s(other):
            if next_deadline_s(other) <= due_s:
                ahead += tokens_of(other)
            else:
                behind += tokens_of(other)
    computed = max(0.0, ahead + behind - backlog_tokens(context, e))  # of the first ones
    done_s = start_s + own_s + max(0.0, ahead - computed) * s_per_token
    if done_s >= due_s:
        return False
    if behind == 0:
        return True
    for k in range(snapshot.prefills):
        other_s = next_deadline_s(requests[prefilling[k]])
        if other_s <= due_s or other_s <= now_s:
            continue
        until = ahead  # tokens up to this one
        for i in range(snapshot.prefills):
            between_s = next_deadline_s(requests[prefilling[i]])
            if due_s < between_s <= other_s and now_s < between_s:
                until += tokens_of(requests[prefilling[i]])
        without_s = start_s + max(0.0, until - computed) * s_per_token
        if without_s < other_s <= without_s + own_s:
            return False
    return True


@kernel
def admits(context, request, e, tpot_s, assumed):
    """Whether engine e can take the request so that it and those there stay in time."""
    snapshot, record, now_s = context.known.snapshots[e], context.requests[request], context.now_s
    if snapshot.role == ROLE_DECODE:  # the wait for the running iteration, and one with it (section 4.6)
        peak = peak_with(context, e, record, assumed)
        iteration_s = decoding_s(context, e, snapshot.requests + 1, peak)
        in_time = max(now_s, snapshot.busy_until_s) + iteration_s < next_deadline_s(record)
        return in_time and fits(context, e, record, tpot_s, assumed)
    if max(now_s, snapshot.busy_until_s) >= next_deadline_s(record):
        return False
    own_s, s_per_token = prefill_beside(context, e, record, tpot_s, assumed)
    return own_s < np.inf and first_token_in_time(context, request, e, own_s, s_per_token)


@kernel
def admits_idle(context, record, e, tpot_s, assumed):
    """Whether engine e could take the request in time if it had nothing else."""
    role, now_s = context.known.snapshots[e].role, context.now_s
    tokens, due_s = tokens_of(record), next_deadline_s(record)
    if role != ROLE_PREFILL:
        iteration_s = decoding_s(context, e, 1, tokens - 1 + to_come(record, assumed))
        if iteration_s >= tpot_s:
            return False
        if role == ROLE_DECODE:
            return now_s + iteration_s < due_s
    own_s, _ = prefill_time(context, e, tokens, 0, 0.0, tpot_s, assumed.token_budget)
    return now_s + own_s < due_s

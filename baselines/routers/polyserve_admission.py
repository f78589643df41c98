"""Admission of PolyServe's router: a request that fits an engine, is in time there and makes no other request late
(sections 4.5 to 4.7).
"""

from typing import Any, NamedTuple

import numpy as np

from servegym.baselines.routers.polyserve_forecast import (
    AT,
    CLEAR_S,
    LEAST,
    NUMBER,
    OWN_S,
    OWN_S_PER_TOKEN,
    PEAK,
    S_PER_TOKEN,
    SEEN,
    TPOT_S,
    decoding_s,
    fits,
    foreseen_at,
    number_of,
    peak_with,
    prefill_time,
    to_come,
    tokens_of,
)
from servegym.policy import ROLE_DECODE, ROLE_PREFILL, kernel, next_deadline_s


class Asked(NamedTuple):
    """The question put to one engine after another."""

    number: Any
    place: Any  # of its tier, or of best effort: where engines keep what was foreseen of it
    due_s: Any


@kernel
def asked_of(context, record, place, assumed):
    """The question about a request. place: its tier, or that of best effort."""
    return Asked(number_of(context, record, place, assumed), place, next_deadline_s(record))


@kernel
def is_known(row, asked, tpot_s):
    """Whether the forecast kept of an engine answers this question for the engine's current state."""
    foreseen = row[foreseen_at(asked.place) :]
    return foreseen[AT] == row[SEEN] and foreseen[NUMBER] == asked.number and foreseen[TPOT_S] == tpot_s


@kernel
def keep(row, asked, tpot_s, own_s, s_per_token):
    """Keep an engine's forecast for this question."""
    foreseen = row[foreseen_at(asked.place) :]
    foreseen[AT], foreseen[NUMBER], foreseen[TPOT_S] = row[SEEN], asked.number, tpot_s
    foreseen[OWN_S], foreseen[OWN_S_PER_TOKEN] = own_s, s_per_token


@kernel
def start_of(now_s, snapshot):
    """The time when the running iteration of an engine should have ended; now if it is idle."""
    return max(now_s, snapshot.busy_until_s)


@kernel
def is_known_to_be_late(row, snapshot, asked, tpot_s, now_s):
    """Whether a kept forecast says that a prefill would be late even if it ran at once, or cannot run. Checked first,
    since it rules out most engines."""
    own_s = row[foreseen_at(asked.place) + OWN_S]
    return is_known(row, asked, tpot_s) and start_of(now_s, snapshot) + own_s >= asked.due_s


@kernel
def fits_beside(context, e, record, asked, tpot_s, assumed):
    """`fits` of a request for best effort."""
    row = context.state[e]
    if not is_known(row, asked, tpot_s):
        keep(row, asked, tpot_s, 0.0 if fits(context, e, record, tpot_s, assumed) else np.inf, np.inf)
    return row[foreseen_at(asked.place) + OWN_S] < np.inf


@kernel
def foresee_prefill(context, e, record, asked, tpot_s, assumed):
    """Keep `prefill_time` of a request beside all that engine e has, up to its deadline; inf: it does not fit there."""
    row, snapshot = context.state[e], context.known.snapshots[e]
    own_s, s_per_token = np.inf, np.inf
    if snapshot.role == ROLE_PREFILL or fits(context, e, record, tpot_s, assumed):
        own_s, s_per_token = prefill_time(
            context, e, tokens_of(record), snapshot.requests, row[PEAK], tpot_s, assumed.max_num_batched_tokens,
            asked.due_s - start_of(context.now_s, snapshot),
        )  # fmt: skip
    keep(row, asked, tpot_s, own_s, s_per_token)


@kernel
def backlog_s(context, e):
    """Time until what was sent to engine e for prefill should be done, after its running iteration."""
    snapshot, state = context.known.snapshots[e], context.state
    if snapshot.prefills == 0:
        return 0.0
    as_sent_s = state[e, CLEAR_S] - start_of(context.now_s, snapshot)
    return max(0.0, as_sent_s, state[e, LEAST] * state[e, S_PER_TOKEN])


@kernel
def backlog_tokens(context, e):
    """Tokens that should be left of the prompts sent to engine e, after its running iteration."""
    left_s = backlog_s(context, e)
    sent_tokens = context.known.snapshots[e].prefill_tokens
    return 0.0 if left_s == 0.0 else min(sent_tokens, left_s / context.state[e, S_PER_TOKEN])


@kernel
def first_token_in_time(context, e, due_s, own_s, s_per_token):
    """Whether a prefill that is due then would be in time at engine e, and make none late that is in time without it.

    The engine prefills by deadline; prompts past their deadline come last, and should be nearly done.
    """
    now_s, requests, known = context.now_s, context.requests, context.known
    snapshot, prefilling = known.snapshots[e], known.prefilling[e]
    start_s = start_of(now_s, snapshot)
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
def admits(context, request, e, asked, tpot_s, assumed):
    """Whether engine e can take the request so that it and those there stay in time."""
    snapshot, record, row, now_s = (
        context.known.snapshots[e],
        context.requests[request],
        context.state[e],
        context.now_s,
    )
    if snapshot.role == ROLE_DECODE:  # the wait for the running iteration, and one with it (section 4.6)
        peak = peak_with(context, e, record, assumed)
        iteration_s = decoding_s(context, e, snapshot.requests + 1, peak)
        return start_of(now_s, snapshot) + iteration_s < asked.due_s and fits(context, e, record, tpot_s, assumed)
    if start_of(now_s, snapshot) >= asked.due_s:
        return False
    foreseen = row[foreseen_at(asked.place) :]
    if not is_known(row, asked, tpot_s) or foreseen[OWN_S_PER_TOKEN] == np.inf:
        foresee_prefill(context, e, record, asked, tpot_s, assumed)
    own_s, s_per_token = foreseen[OWN_S], foreseen[OWN_S_PER_TOKEN]
    in_time = start_of(now_s, snapshot) + own_s < asked.due_s
    return in_time and first_token_in_time(context, e, asked.due_s, own_s, s_per_token)


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
    own_s, _ = prefill_time(context, e, tokens, 0, 0.0, tpot_s, assumed.max_num_batched_tokens, due_s - now_s)
    return now_s + own_s < due_s

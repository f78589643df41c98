"""Admission of PolyServe's router: an engine admits a request that fits, is in time and makes no other request late
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
    """A question that is put to one engine after another: does it admit the request?"""

    number: Any
    place: Any  # its tier, or best effort: index of the forecasts kept for each engine
    due_s: Any


@kernel
def asked_of(context, record, place, assumed):
    """Return the question about a request. place: its tier, or best effort."""
    return Asked(number_of(context, record, place, assumed), place, next_deadline_s(record))


@kernel
def is_known(row, asked, tpot_s):
    """Return whether an engine's forecast is for this question and for the engine's present state."""
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
    """Return the estimated end of an engine's iteration; now if it is idle."""
    return max(now_s, snapshot.busy_until_s)


@kernel
def is_known_to_be_late(row, snapshot, asked, tpot_s, now_s):
    """Return whether a kept forecast says that a prefill cannot run, or is late even if it runs at once.

    It is checked first, as it rules out most engines.
    """
    own_s = row[foreseen_at(asked.place) + OWN_S]
    return is_known(row, asked, tpot_s) and start_of(now_s, snapshot) + own_s >= asked.due_s


@kernel
def fits_beside(context, e, record, asked, tpot_s, assumed):
    """Return `fits` of a best-effort request, from the kept forecast if there is one."""
    row = context.state[e]
    if not is_known(row, asked, tpot_s):
        keep(row, asked, tpot_s, 0.0 if fits(context, e, record, tpot_s, assumed) else np.inf, np.inf)
    return row[foreseen_at(asked.place) + OWN_S] < np.inf


@kernel
def forecast_prefill(context, e, record, asked, tpot_s, assumed):
    """Keep the forecast `prefill_time` of a request at engine e beside its requests; inf: it does not fit there."""
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
    """Return the forecast time to prefill what was sent to engine e, from the end of its running iteration, s."""
    snapshot, state = context.known.snapshots[e], context.state
    if snapshot.prefills == 0:
        return 0.0
    as_sent_s = state[e, CLEAR_S] - start_of(context.now_s, snapshot)
    return max(0.0, as_sent_s, state[e, LEAST] * state[e, S_PER_TOKEN])


@kernel
def backlog_tokens(context, e):
    """Return the forecast tokens left to prefill at engine e at the end of its running iteration."""
    left_s = backlog_s(context, e)
    sent_tokens = context.known.snapshots[e].prefill_tokens
    return 0.0 if left_s == 0.0 else min(sent_tokens, left_s / context.state[e, S_PER_TOKEN])


@kernel
def first_token_in_time(context, e, due_s, own_s, s_per_token):
    """Return whether a prefill due at due_s would be in time at engine e, and make no other prefill late.

    The engine prefills by deadline; prompts past their deadline come last and are ignored.
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
    computed = max(0.0, ahead + behind - backlog_tokens(context, e))  # tokens of the first prompts
    done_s = start_s + own_s + max(0.0, ahead - computed) * s_per_token
    if done_s >= due_s:
        return False
    if behind == 0:
        return True
    for k in range(snapshot.prefills):
        other_s = next_deadline_s(requests[prefilling[k]])
        if other_s <= due_s or other_s <= now_s:
            continue
        until = ahead  # tokens up to and including this prompt
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
    """Return whether the request and the requests of engine e would be in time there."""
    snapshot, record, row = context.known.snapshots[e], context.requests[request], context.state[e]
    now_s = context.now_s
    if snapshot.role == ROLE_DECODE:  # the end of the running iteration, and an iteration with it (section 4.6)
        peak = peak_with(context, e, record, assumed)
        iteration_s = decoding_s(context, e, snapshot.requests + 1, peak)
        return start_of(now_s, snapshot) + iteration_s < asked.due_s and fits(context, e, record, tpot_s, assumed)
    if start_of(now_s, snapshot) >= asked.due_s:
        return False
    foreseen = row[foreseen_at(asked.place) :]
    if not is_known(row, asked, tpot_s) or foreseen[OWN_S_PER_TOKEN] == np.inf:
        forecast_prefill(context, e, record, asked, tpot_s, assumed)
    own_s, s_per_token = foreseen[OWN_S], foreseen[OWN_S_PER_TOKEN]
    in_time = start_of(now_s, snapshot) + own_s < asked.due_s
    return in_time and first_token_in_time(context, e, asked.due_s, own_s, s_per_token)


@kernel
def admits_idle(context, record, e, tpot_s, assumed):
    """Return whether the request would be in time at engine e if that had no other request."""
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

"""Numbers of a request's session for observations: how far it is, and how it stands against its SLOs.

They follow the numbers of a request in a slot (scheduling.py), or of the request to route (caching.py).
"""

from servegym.baselines.observations.caching import CACHING_FIELDS, CACHING_WHOLE, CACHING_WHOLE_FIELDS, write_caching
from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import COUNT_BITS, log_share, squash
from servegym.baselines.observations.scheduling import (
    SCHEDULING_WHOLE_FIELDS,
    SLOT,
    WHOLE,
    WORTHY_REQUEST_FIELDS,
    write_scheduling,
)
from servegym.policy import allocating_kernel, kernel

SESSION_FIELDS = (
    Field("turn", 0, 1, "turns of its session before it: log2(1 + n) / 12"),
    Field("session_tokens", 0, 1, "tokens that were computed for those turns: log2(1 + n) / 24"),
    Field("session_age", 0, 1, "time x since its session's first request arrived, y the SLO of its own first token: "
          "x / (64 y + x)"),
    Field("session_slack", -1, 1, "time s to its next deadline if earlier turns had just met their SLOs, y the SLO of "
          "its own first token: s / (8 y + |s|)"),
)  # fmt: skip
TURN, SESSION_TOKENS, SESSION_AGE, SESSION_SLACK = range(len(SESSION_FIELDS))
SESSION = len(SESSION_FIELDS)
SESSION_BITS = 24.0  # log2 of the most tokens of a session on the scale
AGE_SLOS, SLACK_SLOS = 64.0, 8.0  # a session has many turns, and may be several turns ahead of its SLOs


def scheduling_sessions_layout(slots: int) -> Layout:
    """Return the layout of `observe_scheduling_sessions`: float32[36 + 31 slots]."""
    return Layout("engine", SCHEDULING_WHOLE_FIELDS, "request", (*WORTHY_REQUEST_FIELDS, *SESSION_FIELDS), slots)


def caching_sessions_layout(slots: int) -> Layout:
    """Return the layout of `observe_caching_sessions`: float32[20 + 31 slots]."""
    return Layout("request", (*CACHING_WHOLE_FIELDS, *SESSION_FIELDS), "engine", CACHING_FIELDS, slots)


@kernel
def write_session(request, now_s, out, at):
    """Write `SESSION_FIELDS` of a request from out[at] on. A request in no session counts as the first of one."""
    slo_s = request.first_deadline_s - request.arrival_s
    due_s = request.session_deadline_s + request.num_output_tokens * request.token_interval_s
    out[at + TURN] = log_share(request.turn, COUNT_BITS)
    out[at + SESSION_TOKENS] = log_share(request.session_tokens, SESSION_BITS)
    out[at + SESSION_AGE] = squash(max(now_s - request.session_arrival_s, 0.0), AGE_SLOS * slo_s)
    out[at + SESSION_SLACK] = squash(due_s - now_s, SLACK_SLOS * slo_s)


@allocating_kernel
def observe_scheduling_sessions(context, ranks, constant_s, order, slots, out):
    """Write `observe_scheduling`, with the session of each request in a slot."""
    filled, work = write_scheduling(context, ranks, constant_s, order, slots, SLOT + SESSION, out)
    for k in range(filled):
        request = context.requests[context.queue[order[k]]]
        write_session(request, context.now_s, out, WHOLE + k * (SLOT + SESSION) + SLOT)
    return filled, work


@kernel
def observe_caching_sessions(context, r, chosen, slots, measure, out):
    """Write `observe_caching`, with the session of the request."""
    write_caching(context, r, chosen, slots, measure, CACHING_WHOLE + SESSION, out)
    write_session(context.requests[r], context.now_s, out, CACHING_WHOLE)

"""Observation of an engine and its requests for a policy that decides ranks, time budget, chunks and what to give up.

It has the fields of `observe_queue`, with slots only for requests with positive worth, and inputs of the heuristics:
expected gain, output lengths, recent arrivals. Times are relative to a tick (a TPOT SLO), a request's span, or the
constant part of a batch, so that a policy can serve devices that it was not trained on.
"""

import numpy as np

from servegym.baselines.heaps import offer
from servegym.baselines.observations.engine import (
    NO_WORK,
    NONE_URGENT,
    NOTHING_DUE,
    state_of,
    tick_s_of,
    with_due,
    with_urgent,
    with_work,
    work_s_of,
    write_due,
    write_work,
)
from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.queue import (
    QUEUE_WHOLE_FIELDS,
    REQUEST_FIELDS,
    add_decodes,
    observe_filled,
    observe_slots,
)
from servegym.baselines.observations.scales import (
    COUNT_BITS,
    SMALLEST,
    TOKENS_BITS,
    log_share,
    root_ratio,
    share,
    squash,
)
from servegym.baselines.observations.worth import (
    BLOCK,
    IN_TIME,
    PROSPECTS,
    blocks_of,
    expected_tokens,
    note_prospects,
    weigh,
)
from servegym.baselines.time_budgets import FROM_EARLY_FIRST_TOKEN, counted_deadline_s
from servegym.policy import LEAVE_OUT, allocating_kernel, is_decoding, kernel, mean_length

LAST = 8  # latest arrivals, of which the mean gap is taken

SCHEDULING_WHOLE_FIELDS = (
    *QUEUE_WHOLE_FIELDS,
    Field("worthy", 0, 1, "share of the requests with positive worth: at least one token is expected in time"),
    Field("mean_worth", 0, 1, "mean of `worth` (of a slot, below) over all requests"),
    Field("worthy_work", 0, 1, "estimated time t of the work of those requests: t / (8 ticks + t)"),
    Field(
        "mean_output", 0, 1, "mean output tokens of finished requests of the newest one's application: log2(1 + n) / 20"
    ),
    Field("output_spread", 0, 1, "standard deviation s of these, m their mean: s / (m + s)"),
    Field("finished", 0, 1, "number of these finished requests: log2(1 + n) / 12"),
    Field("since_arrival", 0, 1, "time x since the newest request arrived: x / (tick + x)"),
    Field("arrival_gap", 0, 1, "mean gap x of the last 8 arrivals still here, the last until now: x / (tick + x)"),
)
(WORTHY, MEAN_WORTH, WORTHY_WORK, MEAN_OUTPUT, OUTPUT_SPREAD, FINISHED, SINCE_ARRIVAL, ARRIVAL_GAP) = range(
    len(QUEUE_WHOLE_FIELDS), len(SCHEDULING_WHOLE_FIELDS)
)
WHOLE = len(SCHEDULING_WHOLE_FIELDS)
# Rows of float64[COLUMNS, BLOCK]: the prospects, then OPEN_S as `with_due` returns it, and GAIN of the next token.
OPEN_S, GAIN = PROSPECTS, PROSPECTS + 1
COLUMNS = PROSPECTS + 2
BEFORE_ALL = np.int64(-(2**63))  # a tier

WORTHY_REQUEST_FIELDS = (
    *REQUEST_FIELDS,
    Field("worth", 0, 1, "share of the gain it has left that is expected in time"),
    Field("value", 0, 1, "square root of (that gain per second of exec / the highest of the slots)"),
    Field("waited", 0, 1, "time x since its arrival, against its first SLO y: x / (y + x)"),
    Field("expected_left", 0, 1, "tokens it is expected to have left: log2(1 + n) / 20"),
    Field("in_constants", 0, 1, "exec t against the constant part c of a batch: t / (c + t)"),
)
WORTH, VALUE, WAITED, EXPECTED_LEFT, IN_CONSTANTS = range(len(REQUEST_FIELDS), len(WORTHY_REQUEST_FIELDS))
SLOT = len(WORTHY_REQUEST_FIELDS)


def scheduling_layout(slots: int) -> Layout:
    """Return the layout of `observe_scheduling`: float32[36 + 27 slots]."""
    return Layout("engine", SCHEDULING_WHOLE_FIELDS, "request", WORTHY_REQUEST_FIELDS, slots)


@allocating_kernel
def observe_scheduling(context, ranks, constant_s, order, slots, out):
    """Write `scheduling_layout(slots)` of a SchedulerContext into out, float32. Returns the slots filled, and `Work`.

    ranks: of the base scheduler, with the estimator's exec_s; ranks[i].victim_key receives the worth of queue[i].
    constant_s: time of an empty batch. order: receives the queue position of each slot's request (see
    `fill_slots`).
    """
    return write_scheduling(context, ranks, constant_s, order, slots, SLOT, out)


@allocating_kernel
def write_scheduling(context, ranks, constant_s, order, slots, stride, out):
    """Write `observe_scheduling` into an observation with `stride` numbers per slot, of which others write the rest."""
    columns = np.empty((blocks_of(context.queue.shape[0]), COLUMNS, BLOCK))
    work, due = look_through(context, ranks, constant_s, columns)
    times_s = constant_s, tick_s_of(work), work_s_of(work)
    urgent, prefills = write_worth(context, ranks, columns, times_s, slots, order, out)
    write_work(work, context.queue.shape[0], constant_s, context.engine, out)
    write_due(due, urgent, work, context.queue.shape[0], out)
    filled = add_decodes(True, context.requests, context.queue, ranks, slots, order, prefills)
    observe_filled(context, filled, out)
    observe_past(context, tick_s_of(work), out)
    observe_slots(context, ranks, order[:filled], slots, times_s, out[WHOLE:], stride)
    observe_worth(context, ranks, order[:filled], constant_s, stride, out[WHOLE:])
    return filled, work


@kernel
def look_through(context, ranks, constant_s, columns):
    """Return `Work` and `Due` of the queue, and write each request's numbers into columns, block by block.

    Unsigned indices spare the check for indices that count from the end.
    """
    requests, now_s, work, due = context.requests, context.now_s, NO_WORK, NOTHING_DUE
    for block in range(columns.shape[0]):
        queue, own = context.queue[block * BLOCK : (block + 1) * BLOCK], columns[block]
        for k in range(queue.shape[0]):
            request, exec_s = requests[np.uint32(queue[k])], ranks[block * BLOCK + k].exec_s
            state = state_of(request, now_s)
            counted_s = state.slack_s
            if request.num_output_tokens > 0:
                counted_s = counted_deadline_s(request, FROM_EARLY_FIRST_TOKEN) - now_s
            work = with_work(work, request, state, exec_s)
            due, own[OPEN_S, k] = with_due(due, state, exec_s, constant_s)
            own[GAIN, k] = state.gain
            note_prospects(request, counted_s - exec_s - constant_s, state.first_gain, own, k)
    return work, due


@kernel
def write_worth(context, ranks, columns, times_s, slots, order, out):
    """Write the worth of requests, sum up urgent ones, and choose the prefills that get slots.

    Returns the number of prefills; their positions are in order."""
    requests, queue, n, urgent = context.requests, context.queue, context.queue.shape[0], NONE_URGENT
    constant_s, tick_s, work_s = times_s
    worthy, worthy_s, total, prefills = 0, 0.0, 0.0, 0
    tier, key = LEAVE_OUT if slots > 0 else BEFORE_ALL, -np.inf  # requests that rank from here on get no slot
    for block in range(columns.shape[0]):
        own = columns[block]
        for k in range(weigh(context, own, block, tick_s)):
            position, worth = block * BLOCK + k, own[IN_TIME, k]
            rank = ranks[position]
            urgent = with_urgent(urgent, own[OPEN_S, k], work_s + constant_s, rank.exec_s, own[GAIN, k])
            rank.victim_key = worth
            worthy += worth > 0.0
            worthy_s += rank.exec_s if worth > 0.0 else 0.0
            total += worth
            before = (rank.tier < tier) | ((rank.tier == tier) & (rank.key < key))
            if before and worth > 0.0 and not is_decoding(requests[queue[position]]):
                prefills = offer(order, prefills, slots, position, ranks)
                if prefills == slots:
                    tier, key = ranks[order[0]].tier, ranks[order[0]].key
    out[WORTHY], out[MEAN_WORTH] = share(worthy, n), total / max(n, 1)
    out[WORTHY_WORK] = squash(worthy_s, 8.0 * tick_s)
    return urgent, prefills


@kernel
def observe_past(context, tick_s, out):
    """Write the fields of past output lengths and recent arrivals."""
    requests, queue, n = context.requests, context.queue, context.queue.shape[0]
    if n == 0:
        for place in (MEAN_OUTPUT, OUTPUT_SPREAD, FINISHED, SINCE_ARRIVAL, ARRIVAL_GAP):
            out[place] = 0.0
        return
    newest, earlier = requests[queue[n - 1]], requests[queue[max(0, n - LAST)]]
    group = context.state.by_application[newest.application]
    mean = mean_length(group, 0.0)
    deviation = np.sqrt(max(group.squared_deviations, 0.0) / group.finished) if group.finished > 0 else 0.0
    out[MEAN_OUTPUT] = log_share(mean, TOKENS_BITS)
    out[OUTPUT_SPREAD] = squash(deviation, mean)
    out[FINISHED] = log_share(group.finished, COUNT_BITS)
    out[SINCE_ARRIVAL] = squash(max(context.now_s - newest.arrival_s, 0.0), tick_s)
    out[ARRIVAL_GAP] = squash(max(context.now_s - earlier.arrival_s, 0.0) / min(n, LAST), tick_s)


@kernel
def observe_worth(context, ranks, order, constant_s, stride, out):
    """Write the fields of requests in slots that `observe_slots` does not write."""
    requests, queue, filled, best = context.requests, context.queue, order.shape[0], 0.0
    for k in range(filled):
        best = max(best, value_of(context, requests[queue[order[k]]], ranks[order[k]]))
    at = 0
    for k in range(filled):
        request, rank = requests[queue[order[k]]], ranks[order[k]]
        slo_s = request.first_deadline_s - request.arrival_s
        out[at + WORTH] = rank.victim_key
        out[at + VALUE] = root_ratio(value_of(context, request, rank), best)
        out[at + WAITED] = squash(max(context.now_s - request.arrival_s, 0.0), slo_s)
        out[at + EXPECTED_LEFT] = log_share(expected_tokens(context, request), TOKENS_BITS)
        out[at + IN_CONSTANTS] = squash(rank.exec_s, constant_s)
        at += stride


@kernel
def value_of(context, request, rank):
    """Return the expected gain of the request in time, per second of its work."""
    gain = request.decode_token_gain * expected_tokens(context, request)
    if request.num_output_tokens == 0:
        gain += request.first_token_gain
    return rank.victim_key * gain / max(rank.exec_s, SMALLEST)

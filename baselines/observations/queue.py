"""Observation of an engine and its best-ranked requests, slot by slot, for a policy that reorders them."""

import numpy as np

from servegym.baselines.heaps import offer
from servegym.baselines.observations.engine import ENGINE_FIELDS, observe_engine
from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import (
    LARGEST,
    SMALLEST,
    TOKENS_BITS,
    log_known,
    log_share,
    next_gain,
    root_ratio,
    share,
    span_of,
    squash,
    write_zeros,
)
from servegym.policy import LEAVE_OUT, is_decoding, kernel, left_of, next_deadline_s, sort

QUEUE_WHOLE_FIELDS = (
    *ENGINE_FIELDS,
    Field("beyond", 0, 1, "share of the queue without slot"),
    Field("running", 0, 1, "1: a batch that can be suspended is running"),
    Field("suspended", 0, 1, "suspended batches s: s / (1 + s)"),
)
BEYOND, RUNNING, SUSPENDED = range(len(ENGINE_FIELDS), len(QUEUE_WHOLE_FIELDS))
WHOLE = len(QUEUE_WHOLE_FIELDS)

REQUEST_FIELDS = (
    Field("present", 0, 1, "1: there is a request in this slot"),
    Field("decoding", 0, 1, "1: it decodes: one token is left to compute"),
    Field("holder", 0, 1, "1: it is running: it has KV blocks"),
    Field("late", 0, 1, "1: its next deadline has passed"),
    Field("hopeless", 0, 1, "1: it would miss its next deadline even alone in the next batch"),
    Field("slack", -1, 1, "time s to its next deadline: s / (span + |s|)"),
    Field("leeway", -1, 1, "the same, against the time w of all queued work: s / (w + |s|); up to 0.5 it is urgent"),
    Field("spare", -1, 1, "s less the constant part of a batch, x: x / (exec + |x|); above 0.5: in time if it runs "
          "alone"),
    Field("work", 0, 1, "estimated time t of what it could compute next (exec): t / (tick + t)"),
    Field("shortness", 0, 1, "square root of (least exec of the slots / its own)"),
    Field("density", 0, 1, "square root of (gain of its next token per second of exec / the highest of the slots)"),
    Field("gain", 0, 1, "gain of its next token / the largest of the slots"),
    Field("weight", 0, 1, "gain of each later token / the largest of the slots"),
    Field("prompt_left", 0, 1, "tokens left to prefill: log2(1 + n) / 20; 0: it decodes"),
    Field("context", 0, 1, "prompt and output tokens so far: log2(1 + n) / 20"),
    Field("emitted", 0, 1, "output tokens so far: log2(1 + n) / 20"),
    Field("predicted", 0, 1, "1: there is a prediction of its length"),
    Field("output_left", 0, 1, "predicted tokens to come: log2(1 + n) / 20; 0: no prediction"),
    Field("blocks", 0, 1, "square root of the share of the engine's KV blocks that it holds"),
    Field("in_task", 0, 1, "1: it is in a batch that has been suspended or can be"),
    Field("is_running", 0, 1, "1: that batch is running"),
    Field("position", 0, 1, "its place in the base scheduler's order, from 0, / the number of slots"),
)  # fmt: skip
(
    PRESENT, DECODING, HOLDER, LATE, HOPELESS, SLACK, LEEWAY, SPARE, WORK, SHORTNESS, DENSITY, GAIN, WEIGHT,
    PROMPT_LEFT, CONTEXT, EMITTED, PREDICTED, OUTPUT_LEFT, BLOCKS, IN_A_TASK, IS_RUNNING, POSITION,
) = range(len(REQUEST_FIELDS))  # fmt: skip
SLOT = len(REQUEST_FIELDS)


def queue_layout(slots: int) -> Layout:
    """Return the layout of `observe_queue`: float32[28 + 22 slots]."""
    return Layout("engine", QUEUE_WHOLE_FIELDS, "request", REQUEST_FIELDS, slots)


@kernel
def fill_slots(only_worthy, requests, queue, ranks, slots, order):
    """Write the queue positions of up to `slots` requests into order, in rank order, and return their number.

    The best-ranked prefills get slots first, then the best-ranked decodes: under overload decodes would fill all slots,
    although most of them run anyway. Requests that are left out or in a suspended batch get none. only_worthy: nor do
    those without a worth (victim_key) above 0. order: as long as the smaller of slots and the queue.
    """
    prefills = fill_with(False, only_worthy, requests, queue, ranks, slots, order)
    return add_decodes(only_worthy, requests, queue, ranks, slots, order, prefills)


@kernel
def add_decodes(only_worthy, requests, queue, ranks, slots, order, prefills):
    """Complete `fill_slots` after its prefills, which are order[:prefills], not sorted yet."""
    filled = prefills + fill_with(True, only_worthy, requests, queue, ranks, slots - prefills, order[prefills:])
    sort(order, ranks, filled)
    return filled


@kernel
def fill_with(decodes, only_worthy, requests, queue, ranks, slots, heap):
    """Write the positions of the `slots` best-ranked decodes (or others), by (tier, key), then the earlier position.

    They are kept in a heap of the best so far with the worst at its root: O(n log slots).
    """
    filled = 0
    if slots <= 0:
        return 0
    for position in range(queue.shape[0]):
        if only_worthy and not ranks[position].victim_key > 0.0:
            continue
        if ranks[position].tier < LEAVE_OUT and is_decoding(requests[queue[position]]) == decodes:
            filled = offer(heap, filled, slots, position, ranks)
    return filled


@kernel
def observe_queue(context, ranks, order, slots, out):
    """Write `queue_layout(slots)` of a SchedulerContext into out, float32, and return how many slots are filled.

    ranks: of the base scheduler; only ranks[i].exec_s is written, for queue[i]. order: receives the queue position of
    each slot's request (see `fill_slots`).
    """
    times_s = observe_engine(context, ranks, out)
    filled = fill_slots(False, context.requests, context.queue, ranks, slots, order)
    observe_filled(context, filled, out)
    observe_slots(context, ranks, order[:filled], slots, times_s, out[WHOLE:], SLOT)
    return filled


@kernel
def observe_filled(context, filled, out):
    """Write the fields of the engine that `observe_engine` does not write."""
    engine, n = context.engine, context.queue.shape[0]
    out[BEYOND] = share(n - filled, n)
    out[RUNNING] = engine.running_task >= 0
    out[SUSPENDED] = squash(float(engine.suspended), 1.0)


@kernel
def observe_slots(context, ranks, order, slots, times_s, out, stride):
    """Write the fields of the requests at positions `order` to every `stride`-th number of out, then zeros.

    times_s: from `observe_engine`.
    """
    requests, queue, filled = context.requests, context.queue, order.shape[0]
    least_s, densest, largest, heaviest = LARGEST, 0.0, 0.0, 0.0
    for k in range(filled):
        request, exec_s = requests[queue[order[k]]], ranks[order[k]].exec_s
        least_s = min(least_s, exec_s)
        densest = max(densest, next_gain(request) / max(exec_s, SMALLEST))
        largest = max(largest, next_gain(request))
        heaviest = max(heaviest, request.decode_token_gain)
    at = 0
    for k in range(filled):
        request, exec_s = requests[queue[order[k]]], ranks[order[k]].exec_s
        observe_request(context, request, exec_s, times_s, out, at)
        out[at + SHORTNESS] = root_ratio(least_s, exec_s)
        out[at + DENSITY] = root_ratio(next_gain(request) / max(exec_s, SMALLEST), densest)
        out[at + GAIN] = share(next_gain(request), largest)
        out[at + WEIGHT] = share(request.decode_token_gain, heaviest)
        out[at + POSITION] = k / slots
        at += stride
    write_zeros(out, at, (slots - filled) * stride)


@kernel
def observe_request(context, request, exec_s, times_s, out, at):
    """Write the fields of one request from out[at] on. times_s: from `observe_engine`."""
    engine, (constant_s, tick_s, work_s) = context.engine, times_s
    slack_s = next_deadline_s(request) - context.now_s
    decoding = is_decoding(request)
    to_come = max(request.predicted_output_tokens - request.num_output_tokens, 0.0)
    out[at + PRESENT] = 1.0
    out[at + DECODING] = decoding
    out[at + HOLDER] = request.blocks > 0
    out[at + LATE] = slack_s <= 0.0
    out[at + HOPELESS] = slack_s <= exec_s + constant_s
    out[at + SLACK] = squash(slack_s, span_of(request))
    out[at + LEEWAY] = squash(slack_s, constant_s + work_s)
    out[at + SPARE] = squash(slack_s - constant_s, exec_s)
    out[at + WORK] = squash(exec_s, tick_s)
    out[at + PROMPT_LEFT] = 0.0 if decoding else log_share(left_of(request), TOKENS_BITS)
    out[at + CONTEXT] = log_share(request.prompt_tokens + request.num_output_tokens, TOKENS_BITS)
    out[at + EMITTED] = log_share(request.num_output_tokens, TOKENS_BITS)
    out[at + PREDICTED] = request.predicted_output_tokens > 0.0
    out[at + OUTPUT_LEFT] = log_known(to_come) if request.predicted_output_tokens > 0.0 else 0.0
    out[at + BLOCKS] = np.sqrt(share(request.blocks, engine.total_blocks))
    out[at + IN_A_TASK] = request.task >= 0
    out[at + IS_RUNNING] = request.task >= 0 and request.task == engine.running_task

"""An engine as a controller of its scheduler sees it: what is queued, what is due, and what time and memory there are.

Times are relative to a *tick*, the smallest TPOT SLO in the queue (without interactive requests: the smallest TTLT
SLO), or to the *span* of the request they are about (`scales.span_of`). docs/observations.md says why these numbers.
"""

from typing import NamedTuple

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import (
    COUNT_BITS,
    TOKENS_BITS,
    log_share,
    next_gain,
    share,
    span_of,
    squash,
)
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.compilation import inlined_kernel, kernel
from servegym.simulator.requests import cached_of, is_decoding, left_of, next_deadline_s

ENGINE_FIELDS = (
    Field("queued", 0, 1, "requests here, waiting and running: log2(1 + n) / 12"),
    Field("decoding", 0, 1, "share of them that decode"),
    Field("waiting", 0, 1, "share without KV memory"),
    Field("again", 0, 1, "share that has tokens out and has to be prefilled again (evicted, or its engine failed)"),
    Field("late", 0, 1, "share whose next deadline has passed"),
    Field("hopeless", 0, 1, "share that would miss its next deadline even alone in the next batch; late ones included"),
    Field("constant", 0, 1, "constant time of a batch c: c / (tick + c)"),
    Field("decode_work", 0, 1, "time t of a batch of all decodes: t / (tick + t); above 0.5 decodes fall behind"),
    Field("prefill_work", 0, 1, "estimated time t of all prefills left: t / (their mean span + t)"),
    Field("longest_prefill", 0, 1, "time t of the longest of them: t / (tick + t)"),
    Field("least_slack", 0, 1, "least time s to a deadline that can be met: s / (tick + s); 1: there is none"),
    Field("least_prefill_slack", -1, 1, "least time s to the deadline of a prefill: s / (span + |s|); 1: no prefill"),
    Field("mean_prefill_slack", -1, 1, "mean of s / (span + |s|) over prefills; 0: no prefill"),
    Field("least_decode_slack", -1, 1, "least time s to the deadline of a decode: s / (span + |s|); 1: no decode"),
    Field("mean_decode_slack", -1, 1, "mean of s / (span + |s|) over decodes; 0: no decode"),
    Field("urgent_work", 0, 1, "share of the work that is urgent: not hopeless, but due before all work would be done"),
    Field("urgent_gain", 0, 1, "share of the gain of all next tokens that urgent requests have"),
    Field("hopeless_gain", 0, 1, "share of the gain of all next tokens that hopeless requests have"),
    Field("urgent_density", 0, 1, "gain per second of urgent work u, of all work a: u / (a + u)"),
    Field("mean_gain", 0, 1, "mean gain of a next token / the largest"),
    Field("free_kv", 0, 1, "share of KV blocks that is free"),
    Field("wanted_kv", 0, 1, "KV x that requests without memory would take, in capacities: x / (1 + x)"),
    Field("prefill_tokens", 0, 1, "tokens of prefills left: log2(1 + n) / 20"),
    Field("decode_context", 0, 1, "mean context of decodes: log2(1 + tokens) / 20"),
    Field("estimate_scale", 0, 1, "what the estimator is corrected by, f: f / (1 + f); 0.5: not at all"),
)  # fmt: skip
(
    QUEUED, DECODING, WAITING, AGAIN, LATE, HOPELESS, CONSTANT, DECODE_WORK, PREFILL_WORK, LONGEST_PREFILL,
    LEAST_SLACK, LEAST_PREFILL_SLACK, MEAN_PREFILL_SLACK, LEAST_DECODE_SLACK, MEAN_DECODE_SLACK, URGENT_WORK,
    URGENT_GAIN, HOPELESS_GAIN, URGENT_DENSITY, MEAN_GAIN, FREE_KV, WANTED_KV, PREFILL_TOKENS, DECODE_CONTEXT,
    ESTIMATE_SCALE,
) = range(len(ENGINE_FIELDS))  # fmt: skip


def engine_layout() -> Layout:
    """float32[25]: what `observe_engine` writes."""
    return Layout("engine", ENGINE_FIELDS)


@kernel
def observe_engine(context, ranks, out):
    """Write `engine_layout()` of the engine of a SchedulerContext into out, float32.

    ranks: ranks[i].exec_s is written for queue[i], nothing else. Returns seconds: constant part of a batch, tick, work.
    """
    constant_s, tick_s, work_s = times_s = observe_state(context, ranks, out)
    observe_deadlines(context.now_s, context.requests, context.queue, constant_s, tick_s, work_s, ranks, out)
    return times_s


@kernel
def observe_state(context, ranks, out):
    """`observe_engine`, deadlines apart."""
    engine, requests, queue, estimator = context.engine, context.requests, context.queue, context.estimator
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    tick_s, work_s = observe_work(engine, requests, queue, constant_s, ranks, out)
    out[FREE_KV] = share(engine.free_blocks, engine.total_blocks)
    out[ESTIMATE_SCALE] = squash(max(engine.estimate_scale, 0.0), 1.0)
    return constant_s, tick_s, work_s


@kernel
def observe_work(engine, requests, queue, constant_s, ranks, out):
    """What there is to do, deadlines apart. Returns the tick and the time of all work, s."""
    n, decodes, waiting, again = queue.shape[0], 0, 0, 0
    decode_s, prefill_s, longest_s, tick_s, longest_slo_s = 0.0, 0.0, 0.0, np.inf, np.inf
    context, tokens, wanted, span_s = 0.0, 0.0, 0.0, 0.0
    for position in range(n):
        request, exec_s = requests[queue[position]], ranks[position].exec_s
        if request.token_interval_s > 0.0:
            tick_s = min(tick_s, request.token_interval_s)
        else:
            longest_slo_s = min(longest_slo_s, request.first_deadline_s - request.arrival_s)
        if is_decoding(request):
            decodes += 1
            decode_s += exec_s
            context += cached_of(request)
        else:
            left = left_of(request)
            prefill_s += exec_s
            longest_s = max(longest_s, exec_s)
            tokens += left
            span_s += span_of(request)
            again += request.emitted_tokens > 0
        if request.blocks == 0:
            waiting += 1
            wanted += request.prompt_tokens + request.emitted_tokens
    if tick_s == np.inf:
        tick_s = longest_slo_s
    out[QUEUED] = log_share(n, COUNT_BITS)
    out[DECODING], out[WAITING], out[AGAIN] = share(decodes, n), share(waiting, n), share(again, n)
    out[CONSTANT] = squash(constant_s, tick_s)
    out[DECODE_WORK] = squash(constant_s + decode_s, tick_s) if decodes > 0 else 0.0
    out[PREFILL_WORK] = squash(prefill_s, span_s / max(n - decodes, 1))
    out[LONGEST_PREFILL] = squash(longest_s, tick_s)
    out[WANTED_KV] = squash(wanted, engine.total_blocks * engine.block_tokens)
    out[PREFILL_TOKENS] = log_share(tokens, TOKENS_BITS)
    out[DECODE_CONTEXT] = log_share(context / decodes, TOKENS_BITS) if decodes > 0 else 0.0
    return tick_s, decode_s + prefill_s


class Due(NamedTuple):
    """What there is to say of the deadlines of a queue: sums, and the least and largest, over its requests.

    Times in s; slacks as shares of a span. urgent_s: work; gain, urgent_gain, hopeless_gain: of next tokens.
    """

    decodes: int
    late: int
    hopeless: int
    least_s: float
    least_prefill: float
    least_decode: float
    prefill_slack: float
    decode_slack: float
    gain: float
    largest: float
    urgent_gain: float
    hopeless_gain: float
    urgent_s: float


@inlined_kernel
def nothing_due():
    """Of no requests."""
    return Due(0, 0, 0, np.inf, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@inlined_kernel
def with_due(due, request, exec_s, now_s, constant_s, work_s):
    """With one request more. work_s: of all."""
    decodes, late, hopeless, least_s, least_prefill, least_decode, prefill_slack, decode_slack = due[:8]
    gain, largest, urgent_gain, hopeless_gain, urgent_s = due[8:]
    slack_s, worth = next_deadline_s(request) - now_s, next_gain(request)
    slack = squash(slack_s, span_of(request))
    if is_decoding(request):
        decodes += 1
        decode_slack += slack
        least_decode = min(least_decode, slack)
    else:
        prefill_slack += slack
        least_prefill = min(least_prefill, slack)
    gain += worth
    largest = max(largest, worth)
    late += slack_s <= 0.0
    if slack_s <= exec_s + constant_s:
        hopeless += 1
        hopeless_gain += worth
    else:
        least_s = min(least_s, slack_s)
        if slack_s <= work_s + constant_s:
            urgent_s += exec_s
            urgent_gain += worth
    return Due(
        decodes, late, hopeless, least_s, least_prefill, least_decode, prefill_slack, decode_slack,
        gain, largest, urgent_gain, hopeless_gain, urgent_s,
    )  # fmt: skip


@kernel
def observe_deadlines(now_s, requests, queue, constant_s, tick_s, work_s, ranks, out):
    """When it is due, and what it is worth."""
    due = nothing_due()
    for position in range(queue.shape[0]):
        due = with_due(due, requests[queue[position]], ranks[position].exec_s, now_s, constant_s, work_s)
    write_due(due, queue.shape[0], tick_s, work_s, out)


@kernel
def write_due(due, n, tick_s, work_s, out):
    """What is shown of the deadlines of n requests."""
    out[LATE], out[HOPELESS] = share(due.late, n), share(due.hopeless, n)
    out[LEAST_SLACK] = squash(due.least_s, tick_s) if due.least_s < np.inf else 1.0
    out[LEAST_PREFILL_SLACK], out[LEAST_DECODE_SLACK] = due.least_prefill, due.least_decode
    out[MEAN_PREFILL_SLACK] = due.prefill_slack / max(n - due.decodes, 1)
    out[MEAN_DECODE_SLACK] = due.decode_slack / max(due.decodes, 1)
    out[URGENT_WORK], out[URGENT_GAIN] = share(due.urgent_s, work_s), share(due.urgent_gain, due.gain)
    out[HOPELESS_GAIN] = share(due.hopeless_gain, due.gain)
    out[URGENT_DENSITY] = squash(due.urgent_gain * work_s, due.gain * due.urgent_s)
    out[MEAN_GAIN] = share(due.gain / max(n, 1), due.largest)

"""Observation of an engine by a controller of its scheduler: its queue, deadlines, time and memory.

Times are relative to a *tick*, the smallest TPOT SLO in the queue (without interactive requests: the smallest TTLT
SLO), or to the *span* of the request (`scales.span_of`). docs/observations.md says why.
"""

from typing import NamedTuple

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import COUNT_BITS, TOKENS_BITS, log_share, next_gain, share, span_of, squash
from servegym.policy import (
    EMPTY_BATCH,
    allocating_kernel,
    cached_of,
    inlined_kernel,
    is_decoding,
    kernel,
    left_of,
    next_deadline_s,
)

ENGINE_FIELDS = (
    Field("queued", 0, 1, "requests on the engine, waiting and running: log2(1 + n) / 12"),
    Field("decoding", 0, 1, "share of them that decode"),
    Field("waiting", 0, 1, "share of them without KV memory"),
    Field("again", 0, 1, "share that has emitted tokens and must be prefilled again (evicted, or its engine failed)"),
    Field("late", 0, 1, "share whose next deadline has passed"),
    Field("hopeless", 0, 1, "share that would miss its next deadline even alone in the next batch; late ones included"),
    Field("constant", 0, 1, "time c that a batch takes whatever is in it, its constant part: c / (tick + c)"),
    Field("decode_work", 0, 1, "estimated time t of a batch of all decodes: t / (tick + t); above 0.5 decodes fall "
          "behind"),
    Field("prefill_work", 0, 1, "estimated time t of all prefills left: t / (their mean span + t)"),
    Field("longest_prefill", 0, 1, "estimated time t of the longest prefill left: t / (tick + t)"),
    Field("least_slack", 0, 1, "least time s to a deadline that can be met: s / (tick + s); 1: there is none"),
    Field("least_prefill_slack", -1, 1, "least time s to the deadline of a prefill: s / (span + |s|); 1: no prefill"),
    Field("mean_prefill_slack", -1, 1, "mean of s / (span + |s|) over prefills; 0: no prefill"),
    Field("least_decode_slack", -1, 1, "least time s to the deadline of a decode: s / (span + |s|); 1: no decode"),
    Field("mean_decode_slack", -1, 1, "mean of s / (span + |s|) over decodes; 0: no decode"),
    Field("urgent_work", 0, 1, "share of the work that is urgent: not hopeless, but due before all work would be done"),
    Field("urgent_gain", 0, 1, "share of the gain of all next tokens that urgent requests have"),
    Field("hopeless_gain", 0, 1, "share of the gain of all next tokens that hopeless requests have"),
    Field("urgent_density", 0, 1, "gain per second of urgent work, u, against that of all work, a: u / (a + u)"),
    Field("mean_gain", 0, 1, "mean gain of the requests' next tokens / the largest"),
    Field("free_kv", 0, 1, "share of KV blocks that is free"),
    Field("wanted_kv", 0, 1, "KV memory that requests without any would take, x times the engine's: x / (1 + x)"),
    Field("prefill_tokens", 0, 1, "tokens left of all prefills: log2(1 + n) / 20"),
    Field("decode_context", 0, 1, "mean context of decodes: log2(1 + tokens) / 20"),
    Field("estimate_scale", 0, 1, "factor f by which online correction scales estimated times: f / (1 + f); 0.5: not "
          "at all"),
)  # fmt: skip
(
    QUEUED, DECODING, WAITING, AGAIN, LATE, HOPELESS, CONSTANT, DECODE_WORK, PREFILL_WORK, LONGEST_PREFILL,
    LEAST_SLACK, LEAST_PREFILL_SLACK, MEAN_PREFILL_SLACK, LEAST_DECODE_SLACK, MEAN_DECODE_SLACK, URGENT_WORK,
    URGENT_GAIN, HOPELESS_GAIN, URGENT_DENSITY, MEAN_GAIN, FREE_KV, WANTED_KV, PREFILL_TOKENS, DECODE_CONTEXT,
    ESTIMATE_SCALE,
) = range(len(ENGINE_FIELDS))  # fmt: skip


def engine_layout() -> Layout:
    """Return the layout of `observe_engine`: float32[25]."""
    return Layout("engine", ENGINE_FIELDS)


class Work(NamedTuple):
    """The work of a queue: sums, minima and maxima over its requests; times in s.

    cached: cached tokens of decodes. tokens: tokens left of prefills. wanted: tokens of requests without memory.
    interval_s, longest_slo_s: the smallest interval of interactive requests, and the smallest SLO of the others.
    """

    decodes: int
    waiting: int
    again: int
    cached: np.int64
    tokens: np.int64
    wanted: np.int64
    decode_s: float
    prefill_s: float
    longest_s: float
    span_s: float
    interval_s: float
    longest_slo_s: float


class Due(NamedTuple):
    """The deadlines of a queue: sums, minima and maxima over its requests.

    Times in s; slacks as shares of a span. gain, hopeless_gain: sums over next tokens.
    """

    late: int
    hopeless: int
    least_s: float
    least_prefill: float
    least_decode: float
    prefill_slack: float
    decode_slack: float
    gain: float
    largest: float
    hopeless_gain: float


class Urgent(NamedTuple):
    """Sums over urgent requests: their work, s, and the gain of their next tokens."""

    work_s: float
    gain: float


NO_WORK = Work(0, 0, 0, np.int64(0), np.int64(0), np.int64(0), 0.0, 0.0, 0.0, 0.0, np.inf, np.inf)
NOTHING_DUE = Due(0, 0, np.inf, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
NONE_URGENT = Urgent(0.0, 0.0)


@allocating_kernel
def observe_engine(context, ranks, out):
    """Write `engine_layout()` of the engine of a SchedulerContext into out, float32.

    ranks: ranks[i].exec_s is written for queue[i], nothing else. Returns seconds: constant part of a batch, tick, work.
    """
    requests, queue, n = context.requests, context.queue, context.queue.shape[0]
    work, due, urgent, opens_s = NO_WORK, NOTHING_DUE, NONE_URGENT, np.empty(n)
    constant_s = estimate(context, ranks)
    for position in range(n):
        request, exec_s = requests[queue[position]], ranks[position].exec_s
        state = state_of(request, context.now_s)
        work = with_work(work, request, state, exec_s)
        due, opens_s[position] = with_due(due, state, exec_s, constant_s)
    work_s = work_s_of(work)
    for position in range(n):
        request, exec_s = requests[queue[position]], ranks[position].exec_s
        urgent = with_urgent(urgent, opens_s[position], work_s + constant_s, exec_s, next_gain(request))
    write_work(work, n, constant_s, context.engine, out)
    write_due(due, urgent, work, n, out)
    return constant_s, tick_s_of(work), work_s


@kernel
def estimate(context, ranks):
    """Write the estimator's exec_s into ranks, and return the constant part of a batch, s."""
    estimator = context.estimator
    estimator.exec_s(context.requests, context.queue, estimator.coefficients, ranks)
    return constant_of(context, ranks)


@kernel
def constant_of(context, ranks):
    """Return the constant part of a batch, s; exec_s has been written already."""
    return context.estimator.batch_s(EMPTY_BATCH[0], context.estimator.coefficients)


class State(NamedTuple):
    """The state of a request: whether it decodes; time to its next deadline, and its span, s; the gain of its next
    token, and of its first token if it has none yet.
    """

    decoding: bool
    slack_s: float
    span_s: float
    gain: float
    first_gain: float


@inlined_kernel
def state_of(request, now_s):
    """Return the `State` of a request. Most requests have no token yet, so for those few fields are read."""
    slack_s, slo_s = next_deadline_s(request) - now_s, request.first_deadline_s - request.arrival_s
    if request.num_output_tokens == 0:
        return State(False, slack_s, slo_s, request.first_token_gain, request.first_token_gain)
    return State(is_decoding(request), slack_s, span_of(request), request.decode_token_gain, 0.0)


@inlined_kernel
def with_work(work, request, state, exec_s):
    """Add a request to `work`, and return it."""
    decodes, waiting, again, cached, tokens, wanted = work[:6]
    decode_s, prefill_s, longest_s, span_s, interval_s, longest_slo_s = work[6:]
    if request.token_interval_s > 0.0:
        interval_s = min(interval_s, request.token_interval_s)
    else:
        longest_slo_s = min(longest_slo_s, request.first_deadline_s - request.arrival_s)
    if state.decoding:
        decodes += 1
        decode_s += exec_s
        cached += cached_of(request)
    else:
        prefill_s += exec_s
        longest_s = max(longest_s, exec_s)
        tokens += left_of(request)
        span_s += state.span_s
        again += request.num_output_tokens > 0
    if request.blocks == 0:
        waiting += 1
        wanted += request.prompt_tokens + request.num_output_tokens
    return Work(
        decodes, waiting, again, cached, tokens, wanted,
        decode_s, prefill_s, longest_s, span_s, interval_s, longest_slo_s,
    )  # fmt: skip


@kernel
def tick_s_of(work):
    """Return the smallest TPOT SLO in the queue; without interactive requests the smallest TTLT SLO."""
    return work.interval_s if work.interval_s < np.inf else work.longest_slo_s


@kernel
def work_s_of(work):
    """Return the estimated time of all work in the queue, s."""
    return work.decode_s + work.prefill_s


@inlined_kernel
def with_due(due, state, exec_s, constant_s):
    """Add a request to `due`. Returns it, and the time to the request's deadline, s; inf if it is hopeless.

    Conditions that hold for one request in three are arithmetic, as branches would be mispredicted.
    """
    late, hopeless, least_s, least_prefill, least_decode, prefill_slack, decode_slack = due[:7]
    gain, largest, hopeless_gain = due[7:]
    decoding, slack_s, span_s, worth, _ = state
    slack = squash(slack_s, span_s)
    if decoding:
        decode_slack += slack
        least_decode = min(least_decode, slack)
    else:
        prefill_slack += slack
        least_prefill = min(least_prefill, slack)
    alone_s = exec_s + constant_s
    late += slack_s <= 0.0
    hopeless += slack_s <= alone_s
    gain += worth
    largest = max(largest, worth)
    hopeless_gain += worth if slack_s <= alone_s else 0.0
    open_s = np.inf if slack_s <= alone_s else slack_s
    least_s = min(least_s, open_s)
    return Due(
        late, hopeless, least_s, least_prefill, least_decode, prefill_slack, decode_slack, gain, largest, hopeless_gain
    ), open_s


@inlined_kernel
def with_urgent(urgent, open_s, bound_s, exec_s, gain):
    """Add a request to `urgent` if it is due by bound_s, and return it. open_s: from `with_due`."""
    work_s = urgent.work_s + (exec_s if open_s <= bound_s else 0.0)
    return Urgent(work_s, urgent.gain + (gain if open_s <= bound_s else 0.0))


@kernel
def write_work(work, n, constant_s, engine, out):
    """Write the fields about the engine and the work of its n requests."""
    tick_s, decodes = tick_s_of(work), work.decodes
    out[QUEUED] = log_share(n, COUNT_BITS)
    out[DECODING], out[WAITING], out[AGAIN] = share(decodes, n), share(work.waiting, n), share(work.again, n)
    out[CONSTANT] = squash(constant_s, tick_s)
    out[DECODE_WORK] = squash(constant_s + work.decode_s, tick_s) if decodes > 0 else 0.0
    out[PREFILL_WORK] = squash(work.prefill_s, work.span_s / max(n - decodes, 1))
    out[LONGEST_PREFILL] = squash(work.longest_s, tick_s)
    out[WANTED_KV] = squash(float(work.wanted), engine.total_blocks * engine.block_tokens)
    out[PREFILL_TOKENS] = log_share(work.tokens, TOKENS_BITS)
    out[DECODE_CONTEXT] = log_share(work.cached / decodes, TOKENS_BITS) if decodes > 0 else 0.0
    out[FREE_KV] = share(engine.free_blocks, engine.total_blocks)
    out[ESTIMATE_SCALE] = squash(max(engine.estimate_scale, 0.0), 1.0)


@kernel
def write_due(due, urgent, work, n, out):
    """Write the fields about the deadlines of n requests."""
    work_s, tick_s, decodes = work_s_of(work), tick_s_of(work), work.decodes
    out[LATE], out[HOPELESS] = share(due.late, n), share(due.hopeless, n)
    out[LEAST_SLACK] = squash(due.least_s, tick_s) if due.least_s < np.inf else 1.0
    out[LEAST_PREFILL_SLACK], out[LEAST_DECODE_SLACK] = due.least_prefill, due.least_decode
    out[MEAN_PREFILL_SLACK] = due.prefill_slack / max(n - decodes, 1)
    out[MEAN_DECODE_SLACK] = due.decode_slack / max(decodes, 1)
    out[URGENT_WORK], out[URGENT_GAIN] = share(urgent.work_s, work_s), share(urgent.gain, due.gain)
    out[HOPELESS_GAIN] = share(due.hopeless_gain, due.gain)
    out[URGENT_DENSITY] = squash(urgent.gain * work_s, due.gain * urgent.work_s)
    out[MEAN_GAIN] = share(due.gain / max(n, 1), due.largest)

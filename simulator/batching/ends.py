"""The end of an iteration: chunks count as computed, tokens are emitted, finished requests leave."""

import numpy as np

from servegym.simulator.batching.leaving import drop_finished, leave
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.iteration_hooks import (
    accepted_of,
    after_all_tokens,
    after_chunk,
    after_entry,
    after_finishes,
    after_last_token,
    after_tokens,
    at_end,
    before_chunk,
    before_tokens,
    is_computed,
    out_time_s,
    running_entries,
)
from servegym.simulator.features.memory_hooks import free_request
from servegym.simulator.memory.kv_memory import count_blocks
from servegym.simulator.records.events import note
from servegym.simulator.records.requests import next_deadline_s
from servegym.simulator.records.statistics import count_emitted, count_finished, counts
from servegym.simulator.records.types import (
    BATCH_END,
    FINISH,
    TBT_BINS,
    TBT_BINS_PER_OCTAVE,
    TBT_SMALLEST_EXPONENT,
    TOKEN,
)

FEW = 4  # up to so many finished requests are removed one by one; more, in one pass over the queue
_MANTISSA_SHIFT = 52 - 5  # keeps the exponent and 5 bits: 32 bins an octave
_FIRST_BIN = (1023 + TBT_SMALLEST_EXPONENT) * TBT_BINS_PER_OCTAVE


@inlined_kernel
def end_batch(run, router_state, gain, e, now_s):
    """End the iteration of engine e.

    Returns the number of first tokens since requests were sent here (0 without a router) plus last tokens, and
    the number of tokens emitted.
    """
    status, engine = run.status[0], run.engines[e]
    requests, outcomes, histogram = run.requests, run.outcomes, run.tbt_histogram
    entries = running_entries(run, router_state, e)
    engine.busy_s += now_s - engine.batch_start_s
    at_end(run, e, now_s)
    used_blocks, counting = engine.total_blocks - engine.free_blocks, counts(run.state)
    finished, news, emitted, gained = 0, 0, 0, status.gain  # local: sums in memory would stall
    for k in range(engine.batch_length):
        before_chunk(run, engine, entries, k, engine.batch_length)
        entry = entries[k]
        r = entry.request
        request, outcome = requests[r], outcomes[r]
        if not is_computed(engine):
            accepted, rejected = accepted_of(run, e, r, entry.tokens)
            computed = entry.tokens - rejected
            request.computed_tokens += computed
            after_chunk(run, e, r, computed)
            is_last = request.computed_tokens >= request.prompt_tokens + request.num_output_tokens
            entry.emitted = 1 + accepted if is_last else 0
        tokens = entry.emitted
        if tokens == 0:
            continue
        before_tokens(engine, request, outcome)
        out_s = now_s
        for _ in range(tokens):
            out_s = out_time_s(run, now_s)
            earned = gain(request, outcome, out_s)
            if request.num_output_tokens == 0:
                request.first_token_s = now_s
            gained += earned
            emit(request, outcome, status, histogram, earned, out_s)
            if counting:
                count_emitted(run.state, e, request)
            if status.recording:
                note(run, TOKEN, e, r, 1, earned)
        emitted += tokens
        news += after_tokens(run, router_state, e, r)
        if request.num_output_tokens == outcome.output_tokens:
            if finished == 0:
                count_blocks(engine, now_s)
            finished += 1
            count_finished(run.state, e, request)
            outcome.finish_s, outcome.last_token_s = out_s, now_s
            earned = after_last_token(run, router_state, r, out_s)
            gained += earned
            free_request(run, e, r)
            if status.recording:
                note(run, FINISH, e, r, 0, earned)
        after_entry(engine, request, outcome)
    status.gain = gained
    if emitted > 0:
        engine.totals.num_output_tokens += emitted
        engine.totals.scheduled_before = engine.scheduled_tokens
    after_all_tokens(run, router_state, e, now_s)
    if status.recording:
        note(run, BATCH_END, e, -1, used_blocks, now_s - engine.batch_start_s)
    length, engine.batch_length = engine.batch_length, 0
    if finished > 0:
        status.finished += finished
        after_finishes(run, router_state)
        if finished > FEW:
            leave(engine, run.queues[e], run.previous_order[e], requests, outcomes)
        else:
            drop_finished(engine, run.queues[e], run.previous_order[e], entries, length, requests, outcomes)
    return news + finished, emitted


@kernel
def emit(request, outcome, status, histogram, earned, now_s):
    """Count a token that leaves for the client at now_s: its gain, deadline and the time since the one before."""
    outcome.gain += earned
    if now_s < next_deadline_s(request):
        outcome.on_time_tokens += 1
    if request.num_output_tokens == 0:
        outcome.first_token_s = now_s
        if status.buffered_first_token == 0 and request.ttlt_slo_s == np.inf:
            request.first_deadline_s = min(request.first_deadline_s, now_s)
    else:
        interval_s = now_s - outcome.last_token_s
        outcome.longest_tbt_s = max(outcome.longest_tbt_s, interval_s)
        histogram[tbt_bin(interval_s)] += 1
    outcome.last_token_s = now_s
    request.num_output_tokens += 1


@kernel
def tbt_bin(interval_s):
    """Return the bin of the log-linear histogram: the exponent and the first bits of the fraction of a float64."""
    bits = np.float64(interval_s).view(np.int64) >> _MANTISSA_SHIFT
    return max(0, min(TBT_BINS - 1, bits - _FIRST_BIN))

"""The packer: turns a scheduler's ranks and limits into a batch under KV memory, for every scheduler alike.

The rules, numbered, are in docs/simulation.md.
"""

import numpy as np

from servegym.simulator import batches
from servegym.simulator.compilation import kernel
from servegym.simulator.memory import blocks_for, count_blocks, grow, release
from servegym.simulator.ordering import (
    FIRST_WINDOW,
    can_get_something,
    first_ranked,
    gives_up_before,
    next_window,
    whole_queue,
)
from servegym.simulator.requests import is_decoding, left_of
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.types import (
    EVICT_FOR_DECODES,
    EVICTED,
    MISFIT_PASS_OVER,
    MISFIT_STOP,
    NO_LIMIT,
    PHASE_FIRST_DECIDES,
    PHASE_MIXED,
)


@kernel
def form_batch(run, functions, e, now_s):
    """Form the next batch of engine e in run.entries[e]; its sums are run.sums[0]. At least one request runs.

    False: the timeline may be too short for what can happen; make it longer and call again.
    """
    engine, clock, packing = run.engines[e], run.clock[0], run.packing[0]
    count_blocks(engine, now_s)
    while True:
        # In one attempt each request is evicted once and scheduled once at most.
        if clock.recording and lines_left(run) < 2 * engine.queue_length + 1:
            return False
        open_limits(run.limits[0], engine)
        functions.scheduler(
            now_s, engine, run.requests, run.queues[e][: engine.queue_length], run.state, run.parameters,
            run.estimator, run.plan, run.limits[0],
        )  # fmt: skip
        packing.length = 0
        packing.tokens = 0
        packing.admitting = 1
        packing.victims_ranked = 0
        packing.gave_up = 0
        packing.decodes_fit = 1
        packing.prefills_fit = 1
        batches.clear(run.sums[0])
        fill(run, functions, e, now_s)
        if packing.length > 0:
            break
        if packing.gave_up == 0:
            run_first(run, functions, e, now_s)
            break
    engine.batch_length = packing.length
    engine.last_batch_length = packing.length
    engine.scheduled_tokens += packing.tokens
    return True


@kernel
def open_limits(limits, engine):
    """No limit but the engine's watermark."""
    limits.token_budget = NO_LIMIT
    limits.chunk_tokens = NO_LIMIT
    limits.sequence_budget = NO_LIMIT
    limits.holder_budget = NO_LIMIT
    limits.time_budget_s = np.inf
    limits.smallest_chunk_tokens = 1
    limits.watermark_blocks = engine.watermark_blocks
    limits.whole_prompts = 0
    limits.reserve_context = 1
    limits.phase = PHASE_MIXED
    limits.misfit = MISFIT_PASS_OVER
    limits.evict_for = EVICT_FOR_DECODES


@kernel
def fill(run, functions, e, now_s):
    """Visit the queue in rank order and take what fits (rules 1 to 6)."""
    clock, engine, packing, limits = run.clock[0], run.engines[e], run.packing[0], run.limits[0]
    sums, scratch, estimator = run.sums[0], run.sums[1], run.estimator
    queue, order, plan, requests, outcomes = run.queues[e], run.order, run.plan, run.requests, run.outcomes
    entries, blocks = run.entries[e], run.blocks[e]
    timed = limits.time_budget_s < np.inf
    # As many places as the last batch had requests, and some more, are most often enough.
    window, visited, place = max(FIRST_WINDOW, engine.last_batch_length * 5 // 4), 0, -1
    n = whole_queue(order, plan, engine.queue_length)
    more = n < 0
    if more:
        n = 0
    while True:
        if visited == n:
            if not more:
                return
            n, more = next_window(order, plan, engine.queue_length, place, window, requests, queue, packing)
            window *= 2
            visited = 0
            continue
        if packing.length >= limits.sequence_budget or packing.tokens >= limits.token_budget:
            return
        place = order[visited]
        visited += 1
        r = queue[place]
        request = requests[r]
        if not can_get_something(request, packing):
            continue
        holder, decoding = request.blocks > 0, is_decoding(request)
        if limits.phase == PHASE_FIRST_DECIDES and packing.length > 0 and decoding != (packing.decoding == 1):
            continue
        chunk = chunk_of(request, decoding, limits, packing)
        if timed and chunk > 0:
            chunk = cut_to_time(request, decoding, chunk, limits, sums, scratch, estimator)
        if chunk == 0:
            if limits.misfit == MISFIT_STOP:
                return
            if timed:
                see_what_fits(packing, limits, sums, scratch, estimator)
                if packing.decodes_fit == 0 and packing.prefills_fit == 0:
                    return
            continue
        need = blocks_lacking(request, chunk, engine)
        if not holder:
            if not has_room(engine, limits, request, need):
                packing.admitting = 0
                continue
        elif need > engine.free_blocks:
            if not decoding and limits.evict_for == EVICT_FOR_DECODES:
                continue
            packing.admitting = 0
            taken = packing.length
            if not make_room(run, functions, e, place, need, True, now_s):
                packing.gave_up = 1
                return
            if packing.length < taken:
                n, more = visited, True  # budget came back: look again at all that rank after this one
        if need > 0:
            if not holder:
                admit(request, outcomes[r], clock, now_s)
            grow(request, engine, blocks, need)
        take(request, r, entries[packing.length], chunk, decoding, packing, sums)


@kernel
def see_what_fits(packing, limits, sums, scratch, estimator):
    """Note the phases of which not even the cheapest request, one token with nothing cached, fits the time left."""
    packing.decodes_fit = batches.estimate_with(sums, scratch, 1, 0, True, estimator) <= limits.time_budget_s
    packing.prefills_fit = batches.estimate_with(sums, scratch, 1, 0, False, estimator) <= limits.time_budget_s


@kernel
def blocks_lacking(request, chunk, engine):
    """Blocks that the request needs, over those it holds, to compute a chunk."""
    tokens = request.computed_tokens + chunk
    if tokens <= request.blocks * engine.block_tokens:
        return 0
    return blocks_for(tokens, engine.block_tokens) - request.blocks


@kernel
def chunk_of(request, decoding, limits, packing):
    """Tokens the request gets within the token budgets; 0: it does not fit (rule 3)."""
    if decoding:
        return 1
    left = left_of(request)
    if limits.whole_prompts == 0:
        return min(left, limits.chunk_tokens, limits.token_budget - packing.tokens)
    if packing.length == 0 or left <= limits.token_budget - packing.tokens:
        return left
    return 0


@kernel
def cut_to_time(request, decoding, chunk, limits, sums, scratch, estimator):
    """The part of the chunk that fits the time budget; 0: it does not fit (rule 3)."""
    cut = batches.largest_chunk(
        sums, scratch, chunk, request.computed_tokens, decoding, limits.time_budget_s, estimator
    )
    if cut < chunk and not decoding and (limits.whole_prompts or cut < limits.smallest_chunk_tokens):
        return 0
    return cut


@kernel
def has_room(engine, limits, request, need):
    """Whether a request without memory can be admitted (rule 4); `need`: blocks of its chunk."""
    if engine.holders >= limits.holder_budget:
        return False
    room = need
    if limits.reserve_context:
        room = blocks_for(request.prompt_tokens + request.emitted_tokens, engine.block_tokens)
    if engine.holders > 0:
        room += limits.watermark_blocks
    return room <= engine.free_blocks


@kernel
def make_room(run, functions, e, place, need, may_give_up, now_s):
    """Evict by victim rank until `need` blocks are free (rule 5).

    False: the request at `place` was the victim itself (with may_give_up False it never is), or there is none left.
    """
    engine, packing = run.engines[e], run.packing[0]
    queue = run.queues[e]
    if packing.victims_ranked == 0:
        functions.victims(
            now_s, engine, run.requests, queue[: engine.queue_length], run.state, run.parameters, run.estimator,
            run.plan, run.limits[0],
        )  # fmt: skip
        packing.victims_ranked = 1
    while engine.free_blocks < need:
        victim = -1
        for other in range(engine.queue_length):
            if run.requests[queue[other]].blocks == 0 or (other == place and not may_give_up):
                continue
            if victim < 0 or gives_up_before(run.plan, other, victim):
                victim = other
        if victim < 0:
            return False
        evict(run, e, queue[victim], now_s)
        if victim == place:
            return False
    return True


@kernel
def evict(run, e, r, now_s):
    """Take a request's memory, and its place in the batch being formed."""
    request, engine, clock, packing = run.requests[r], run.engines[e], run.clock[0], run.packing[0]
    release(request, engine, run.blocks[e])
    entries = run.entries[e]
    kept, in_batch = 0, False
    for k in range(packing.length):
        if entries[k].request == r:
            packing.tokens -= entries[k].tokens
            in_batch = True
        else:
            entries[kept].request, entries[kept].tokens = entries[k].request, entries[k].tokens
            kept += 1
    packing.length = kept
    request.computed_tokens = 0
    request.admitted = 0
    clock.evictions += 1
    request.evicted = clock.evictions
    engine.evictions += 1
    run.outcomes[r].evictions += 1
    if in_batch:
        packing.decodes_fit = 1
        packing.prefills_fit = 1
        batches.clear(run.sums[0])
        for k in range(kept):
            other = run.requests[entries[k].request]
            batches.add(run.sums[0], entries[k].tokens, other.computed_tokens, is_decoding(other))
    if clock.recording:
        note(run, EVICTED, e, r, 0, 0.0)


@kernel
def admit(request, outcome, clock, now_s):
    """A request without memory is given some."""
    clock.admissions += 1
    request.admitted = clock.admissions
    if np.isnan(outcome.admitted_s):
        outcome.admitted_s = now_s


@kernel
def take(request, r, entry, chunk, decoding, packing, sums):
    """Put request r into the batch with its chunk (rule 6); it has the blocks."""
    if packing.length == 0:
        packing.decoding = decoding
    entry.request = r
    entry.tokens = chunk
    packing.length += 1
    packing.tokens += chunk
    batches.add(sums, chunk, request.computed_tokens, decoding)


@kernel
def run_first(run, functions, e, now_s):
    """Nothing fits and there is work: the first-ranked request runs with what fits (Progress)."""
    engine, limits, packing, sums = run.engines[e], run.limits[0], run.packing[0], run.sums[0]
    place = first_ranked(run.plan, engine.queue_length)
    r = run.queues[e][place]
    request = run.requests[r]
    decoding = is_decoding(request)
    least = left_of(request) if limits.whole_prompts else 1
    chunk = max(least, min(left_of(request), limits.chunk_tokens, limits.token_budget))
    if limits.time_budget_s < np.inf:
        fits = batches.largest_chunk(
            sums, run.sums[1], chunk, request.computed_tokens, decoding, limits.time_budget_s, run.estimator
        )
        chunk = max(least, fits)
    if blocks_lacking(request, least, engine) > engine.free_blocks:
        # What takes memory must emit a token, or two requests could take it from each other forever.
        chunk = left_of(request)
        make_room(run, functions, e, place, blocks_lacking(request, chunk, engine), False, now_s)
    chunk = min(chunk, (request.blocks + engine.free_blocks) * engine.block_tokens - request.computed_tokens)
    need = blocks_lacking(request, chunk, engine)
    if request.blocks == 0:
        admit(request, run.outcomes[r], run.clock[0], now_s)
    grow(request, engine, run.blocks[e], need)
    take(request, r, run.entries[e][packing.length], chunk, decoding, packing, sums)

"""The packer: forms a batch from a scheduler's ranks and limits under KV memory, for every scheduler.

The rules, numbered, are in docs/simulation.md.
"""

import numpy as np

from servegym.simulator.batching.admission import admit, blocks_lacking, can_admit, chunk_within
from servegym.simulator.batching.chunks import chunk_of, cut_to_time, take, take_decodes, update_fits
from servegym.simulator.batching.eviction import make_room, make_room_to_admit
from servegym.simulator.batching.ordering import first_ranked, leave_out_unlisted
from servegym.simulator.batching.ranking import rank_queue
from servegym.simulator.batching.windows import (
    NOT_NUMBERS,
    keep_visits,
    listed_positions,
    may_get_chunk,
    next_window,
    stop_admitting,
    whole_queue,
)
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.packing_hooks import (
    after_attempt,
    after_taking,
    asks_of_each,
    before_attempt,
    before_first,
    before_need,
    before_waiting,
    chunk_back_to_end,
    chunk_to_end,
    ends_chunks,
    gives_memory,
    has_suspended,
    passes_over,
    resumes,
    suspended_blocks,
    waits_for_end,
    wanted_chunk,
)
from servegym.simulator.memory.kv_memory import count_blocks, grow, load_time_s
from servegym.simulator.records import batches
from servegym.simulator.records.events import events_left
from servegym.simulator.records.requests import cached_of, is_decoding, left_of
from servegym.simulator.records.types import (
    EVICT_FOR_ALL,
    EVICT_FOR_DECODES,
    MISFIT_STOP,
    NO_LIMIT,
    PHASE_FIRST_DECIDES,
)

FORMED, WAITING, TIMELINE_SHORT, RESUME, RANK_AGAIN, REFUSED = range(6)


@inlined_kernel
def form_batch(run, decider, e, now_s):
    """Form the next batch of engine e in run.entries[e]; its sums are run.sums[0].

    Returns FORMED: at least one request runs; RESUME: the suspended batch packing.resumed_task runs instead; WAITING:
    none can run before KV transfers end; TIMELINE_SHORT: the timeline may be too short, so make it longer and call
    again; REFUSED: the policy wrote invalid ranks or limits (see `refusals`).
    """
    engine, status, packing = run.engines[e], run.status[0], run.packing[0]
    count_blocks(engine, now_s)
    while True:
        # Events of a request in an attempt: evicted, found and loaded at most twice each, scheduled once.
        if status.recording and events_left(run) < 7 * engine.queue_length + 1:
            return TIMELINE_SHORT
        if not rank_queue(run, decider, e, now_s):
            return REFUSED
        if resumes(run, e):
            return RESUME
        attempted = pack(run, decider, e, now_s)
        if attempted == REFUSED:
            return REFUSED
        if attempted == WAITING:
            return RESUME if has_suspended(engine) else WAITING
        if attempted == FORMED:
            break
    engine.batch_length = packing.length
    engine.last_batch_length = packing.length
    engine.scheduled_tokens += packing.tokens
    return FORMED


@inlined_kernel
def pack(run, decider, e, now_s):
    """Make one attempt to form a batch of engine e from its ranks, within run.limits[0].

    Returns FORMED, WAITING or REFUSED, as `form_batch`, or RANK_AGAIN: nothing fits yet, but requests were evicted.
    """
    packing = run.packing[0]
    packing.length = 0
    packing.tokens = 0
    packing.admitting = 1
    packing.victims_ranked = 0
    packing.gave_up = 0
    packing.decodes_fit = 1
    packing.prefills_fit = 1
    packing.windows = 0
    packing.places_given = 0
    packing.window_length = 0
    before_attempt(run, e)
    batches.begin(run.sums[0], run.engines[e])
    fill(run, decider, e, now_s)
    keep_visits(run.engines[e].visits, packing, run.order[0], run.ranks)
    after_attempt(run, e)
    if packing.refused == 1:
        return REFUSED
    if packing.length > 0:
        return FORMED
    if waits_for_end(run.engines[e]):
        return WAITING
    if packing.gave_up == 1:
        return RANK_AGAIN
    ran = run_first(run, decider, e, now_s)
    after_attempt(run, e)
    if packing.refused == 1:  # victim ranks, which `run_first` asks for
        return REFUSED
    return FORMED if ran else WAITING


@inlined_kernel
def fill(run, decider, e, now_s):
    """Visit the queue in rank order and put what fits into the batch (rules 1 to 6)."""
    engine, packing, limits = run.engines[e], run.packing[0], run.limits[0]
    sums, scratch, estimator = run.sums[0], run.sums[1], decider.estimator
    queue, previous_order, order, ranks, requests = (
        run.queues[e],
        run.previous_order[e],
        run.order[0],
        run.ranks,
        run.requests,
    )
    entries = run.entries[e]
    timed = limits.time_budget_s < np.inf
    visited, position = 0, -1
    running_seen, evictions = 0, run.status[0].evictions
    if limits.listed < NO_LIMIT:
        n = listed_positions(run.order, ranks, limits.listed, previous_order, engine.visits.previous_length, packing)
    else:
        n = whole_queue(run.order, ranks, previous_order, engine, packing)
        packing.window_length = max(n, 0)
    if n == NOT_NUMBERS:
        packing.refused = 1
        return
    more = n < 0
    if more:
        n = 0
    alike = not (limits.phase == PHASE_FIRST_DECIDES or engine.speculation.k > 0)
    if asks_of_each(engine):
        alike = False
    may_be_decodes = alike  # the next requests may be decodes, for the fast path
    while True:
        if may_be_decodes and packing.decodes_fit == 1:
            taken = take_decodes(run, estimator, e, visited, n, now_s)
            running_seen, visited, may_be_decodes = running_seen + taken, visited + taken, False
            if taken > 0:
                position = order[visited - 1]
        if visited == n:
            if not more:
                return
            n, more = next_window(run.order, ranks, previous_order, engine, position, requests, queue, packing)
            if n == NOT_NUMBERS:
                packing.refused = 1
                return
            visited = 0
            packing.window_length = n
            continue
        if packing.admitting == 0 and running_seen >= engine.running and run.status[0].evictions == evictions:
            return  # no more running requests to visit
        if packing.length >= limits.sequence_budget or packing.tokens >= limits.max_num_batched_tokens:
            return
        position = order[visited]
        visited += 1
        packing.visited = visited
        r = queue[position]
        request = requests[r]
        is_running = request.blocks > 0
        running_seen += is_running
        if not may_get_chunk(request, packing) or passes_over(run, e, r):
            continue
        if not is_running:
            before_waiting(run, e, r)
        decoding = is_decoding(request)
        if limits.phase == PHASE_FIRST_DECIDES and packing.length > 0 and decoding != (packing.decoding == 1):
            continue
        chunk = chunk_of(request, decoding, limits, packing)
        if decoding and is_running:
            chunk = wanted_chunk(run, e, r, chunk)
        ends = ends_chunks(engine) and chunk > 0 and not decoding
        if ends:
            chunk = chunk_to_end(run, e, r, chunk)
            if chunk == 0:
                if limits.misfit == MISFIT_STOP:
                    return
                if not is_running:
                    stop_admitting(engine.visits, packing, order, ranks)
                continue
        wanted = chunk
        if timed and chunk > 0 and not (decoding and limits.untimed_decodes):
            chunk = cut_to_time(request, decoding, chunk, engine, packing, limits, run.sums, estimator)
        if chunk == 0:
            if limits.misfit == MISFIT_STOP:
                return
            if timed:
                update_fits(packing, engine, limits, sums, scratch, estimator)
                if packing.decodes_fit == 0 and packing.prefills_fit == 0:
                    return
            continue
        if ends and chunk < wanted:
            chunk = chunk_back_to_end(request, engine, chunk)
        before_need(run, e, r)
        need = blocks_lacking(request, chunk, engine)
        if not is_running:
            if ranks[position].headroom_blocks < 0:
                packing.refused = 1
                return
            if not can_admit(engine, limits, request, need, ranks[position].headroom_blocks):
                taken = packing.length
                if limits.evict_for != EVICT_FOR_ALL or not make_room_to_admit(run, decider, e, position, chunk, now_s):
                    stop_admitting(engine.visits, packing, order, ranks)
                    continue
                if packing.length < taken:
                    n, more = visited, True
            running_seen += 1
        elif need > engine.free_blocks:
            if not decoding and limits.evict_for == EVICT_FOR_DECODES:
                continue
            stop_admitting(engine.visits, packing, order, ranks)
            taken = packing.length
            has_room_now = make_room(run, decider, e, position, need, True, now_s)
            if not has_room_now and (request.blocks == 0 or packing.refused == 1):
                packing.gave_up = 1
                return
            if packing.length < taken:
                n, more = visited, True  # its chunk is free again: visit all requests after this one once more
            if not has_room_now:
                continue
        if not gives_memory(run, e, r, chunk, now_s) and need > 0:
            if not is_running:
                admit(run, e, r, now_s)
            grow(request, engine, need)
        if packing.length == 0 and limits.phase == PHASE_FIRST_DECIDES:
            packing.decodes_fit, packing.prefills_fit = decoding, not decoding
        take(request, r, entries[packing.length], chunk, decoding, engine, packing, sums)
        after_taking(run, e, r)
        may_be_decodes = alike and decoding


@kernel
def run_first(run, decider, e, now_s):
    """Run the first-ranked request although nothing fits, so that the engine makes progress ("Progress" of the rules).

    Returns False if it cannot run even with the memory of all requests in the queue, as some is reserved for transfers.
    """
    engine, limits, packing, sums = run.engines[e], run.limits[0], run.packing[0], run.sums[0]
    leave_out_unlisted(run.ranks, limits, engine.queue_length)
    before_first(run, e)
    position = first_ranked(run.ranks, engine.queue_length)
    r = run.queues[e][position]
    request = run.requests[r]
    if request.task >= 0:
        return False
    if request.blocks == 0:
        before_waiting(run, e, r)
    # Blocks of KV transfers and of suspended batches cannot be taken from any request here.
    before_need(run, e, r)
    lacking = blocks_lacking(request, left_of(request), engine)
    others_blocks = engine.transfers.leaving_blocks + engine.transfers.coming_blocks + suspended_blocks(run, e)
    fits_whole = lacking + request.blocks + others_blocks <= engine.total_blocks
    if engine.suspended > 0 and not fits_whole:
        return False  # else it could be evicted again and again, and no batch would ever be resumed
    decoding = is_decoding(request)
    least = left_of(request) if limits.whole_prompts else 1
    chunk = max(least, min(left_of(request), limits.chunk_tokens, limits.max_num_batched_tokens))
    if limits.time_budget_s < np.inf:
        budget_s = limits.time_budget_s - engine.moving_s - load_time_s(request, engine)
        estimator = decider.estimator
        fits = batches.largest_chunk(sums, run.sums[1], chunk, cached_of(request), decoding, budget_s, estimator)
        untimed = 0 if decoding else min(chunk, limits.untimed_prefill_tokens)
        chunk = max(least, fits, untimed)
    takes_memory = blocks_lacking(request, least, engine) > engine.free_blocks + engine.cache.shared_blocks
    if takes_memory:
        # A request that evicts others must emit a token, or two requests could evict each other forever.
        chunk = left_of(request)
        if not fits_whole:
            return False
        make_room(run, decider, e, position, lacking, False, now_s)
        if request.blocks == 0:
            before_waiting(run, e, r)
    room = request.blocks + engine.free_blocks + engine.cache.shared_blocks
    chunk = chunk_within(request, engine, chunk, room)
    if ends_chunks(engine) and not takes_memory:
        to_end = chunk_to_end(run, e, r, chunk)
        chunk = to_end if to_end > 0 else chunk
    if not gives_memory(run, e, r, chunk, now_s):
        need = blocks_lacking(request, chunk, engine)
        if request.blocks == 0:
            admit(run, e, r, now_s)
        grow(request, engine, need)
    take(request, r, run.entries[e][packing.length], chunk, decoding, engine, packing, sums)
    after_taking(run, e, r)
    return True

"""The packer: turns a scheduler's ranks and limits into a batch under KV memory, for every scheduler alike.

The rules, numbered, are in docs/simulation.md.
"""

import numpy as np

from servegym.simulator import batches
from servegym.simulator.compilation import inlined_kernel, kernel
from servegym.simulator.memory import blocks_for, count_blocks, grow, load, load_time_s, release, save
from servegym.simulator.ordering import (
    FIRST_WINDOW,
    can_get_something,
    first_ranked,
    gives_up_before,
    next_window,
    ranks_before,
    whole_queue,
)
from servegym.simulator.requests import cached_of, is_decoding, left_of
from servegym.simulator.signatures import state_of
from servegym.simulator.statistics import count_admitted
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.types import (
    EVICT_FOR_ALL,
    EVICT_FOR_DECODES,
    EVICTED,
    IN_TASK,
    LOADED,
    MISFIT_PASS_OVER,
    MISFIT_STOP,
    NO_LIMIT,
    NOT_PREEMPTIBLE,
    PHASE_FIRST_DECIDES,
    PHASE_MIXED,
)

FORMED, WAITING, NO_LINES, RESUME = range(4)


@inlined_kernel
def form_batch(run, decider, e, now_s):
    """Form the next batch of engine e in run.entries[e]; its sums are run.sums[0].

    FORMED: at least one request runs. RESUME: none, but the suspended task packing.resumed_task. WAITING: none can
    before KV that is on its way has arrived. NO_LINES: the timeline may be too short for what can happen; make it
    longer and call again.
    """
    engine, clock, packing = run.engines[e], run.clock[0], run.packing[0]
    count_blocks(engine, now_s)
    while True:
        # In one attempt each request is evicted, loaded and scheduled twice at most, and not scheduled twice.
        if clock.recording and lines_left(run) < 5 * engine.queue_length + 1:
            return NO_LINES
        rank(run, decider, e, now_s)
        if engine.suspended > 0 and see_tasks(run, e):
            return RESUME
        packing.length = 0
        packing.tokens = 0
        packing.admitting = 1
        packing.victims_ranked = 0
        packing.gave_up = 0
        packing.decodes_fit = 1
        packing.prefills_fit = 1
        batches.clear(run.sums[0])
        fill(run, decider, e, now_s)
        if packing.length > 0:
            break
        if packing.gave_up == 0:
            if not run_first(run, decider, e, now_s):
                return RESUME if engine.suspended > 0 else WAITING
            break
    engine.batch_length = packing.length
    engine.last_batch_length = packing.length
    engine.scheduled_tokens += packing.tokens
    return FORMED


@kernel
def rank(run, decider, e, now_s):
    """Have the scheduler rank the queue of engine e and set limits."""
    engine = run.engines[e]
    open_limits(run.limits[0], engine)
    if run.engines.shape[0] > 1:  # the scheduler of another pool may have used it
        for place in range(engine.queue_length):
            run.plan[place].headroom_blocks = 0
    decider.scheduler(
        now_s, engine, run.requests, run.queues[e][: engine.queue_length], state_of(run.state, e), run.parameters[e],
        decider.estimator, run.plan, run.limits[0],
    )  # fmt: skip


@kernel
def see_tasks(run, e):
    """Whether the first-ranked request is in a suspended task; if not, keep members of tasks out of the batch.

    packing.resumed_task is the task of the first-ranked request among members.
    """
    length, plan, queue, requests = run.engines[e].queue_length, run.plan, run.queues[e], run.requests
    member = -1
    for place in range(length):
        if requests[queue[place]].task >= 0 and (member < 0 or ranks_before(plan, place, member)):
            member = place
    run.packing[0].resumed_task = requests[queue[member]].task
    if first_ranked(plan, length) == member:
        return True
    for place in range(length):
        if requests[queue[place]].task >= 0:
            plan[place].tier = IN_TASK
    return False


@kernel
def open_limits(limits, engine):
    """No limit but the engine's watermark."""
    limits.token_budget = NO_LIMIT
    limits.chunk_tokens = NO_LIMIT
    limits.sequence_budget = NO_LIMIT
    limits.holder_budget = NO_LIMIT
    limits.time_budget_s = np.inf
    limits.smallest_chunk_tokens = 1
    limits.untimed_prefill_tokens = 0
    limits.untimed_decodes = 0
    limits.watermark_blocks = engine.watermark_blocks
    limits.whole_prompts = 0
    limits.reserve_context = 1
    limits.phase = PHASE_MIXED
    limits.misfit = MISFIT_PASS_OVER
    limits.evict_for = EVICT_FOR_DECODES
    limits.preemptible = NOT_PREEMPTIBLE
    limits.slice_s = np.inf


@inlined_kernel
def fill(run, decider, e, now_s):
    """Visit the queue in rank order and take what fits (rules 1 to 6)."""
    engine, packing, limits = run.engines[e], run.packing[0], run.limits[0]
    sums, scratch, estimator = run.sums[0], run.sums[1], decider.estimator
    queue, order, plan, requests = run.queues[e], run.order, run.plan, run.requests
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
        if timed and chunk > 0 and not (decoding and limits.untimed_decodes):
            chunk = cut_to_time(request, decoding, chunk, engine, limits, sums, scratch, estimator)
        if chunk == 0:
            if limits.misfit == MISFIT_STOP:
                return
            if timed:
                see_what_fits(packing, engine, limits, sums, scratch, estimator)
                if packing.decodes_fit == 0 and packing.prefills_fit == 0:
                    return
            continue
        need = blocks_lacking(request, chunk, engine)
        if not holder:
            if not has_room(engine, limits, request, need, plan[place].headroom_blocks):
                taken = packing.length
                if limits.evict_for != EVICT_FOR_ALL or not make_room_for_newcomer(run, decider, e, place, need, now_s):
                    packing.admitting = 0
                    continue
                if packing.length < taken:
                    n, more = visited, True
        elif need > engine.free_blocks:
            if not decoding and limits.evict_for == EVICT_FOR_DECODES:
                continue
            packing.admitting = 0
            taken = packing.length
            if not make_room(run, decider, e, place, need, True, now_s):
                packing.gave_up = 1
                return
            if packing.length < taken:
                n, more = visited, True  # budget came back: look again at all that rank after this one
        if need > 0:
            if not holder:
                admit(run, e, r, now_s)
            grow(request, engine, blocks, need)
        take(request, r, entries[packing.length], chunk, decoding, packing, sums)


@kernel
def see_what_fits(packing, engine, limits, sums, scratch, estimator):
    """Note the phases of which not even the cheapest request, one token with nothing cached, fits the time left."""
    budget_s = limits.time_budget_s - engine.moving_s
    if limits.untimed_decodes == 0:
        packing.decodes_fit = batches.estimate_with(sums, scratch, 1, 0, True, estimator) <= budget_s
    if sums.prefill_tokens >= limits.untimed_prefill_tokens:
        packing.prefills_fit = batches.estimate_with(sums, scratch, 1, 0, False, estimator) <= budget_s


@kernel
def blocks_lacking(request, chunk, engine):
    """Blocks that the request needs, over those it holds, to compute a chunk."""
    tokens = cached_of(request) + chunk
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
def cut_to_time(request, decoding, chunk, engine, limits, sums, scratch, estimator):
    """The part of the chunk that fits the time budget; 0: it does not fit (rule 3)."""
    budget_s = limits.time_budget_s - engine.moving_s - load_time_s(request, engine)
    cut = batches.largest_chunk(sums, scratch, chunk, cached_of(request), decoding, budget_s, estimator)
    if decoding:
        return cut
    cut = max(cut, min(chunk, limits.untimed_prefill_tokens - int(sums.prefill_tokens)))
    if cut < chunk and (limits.whole_prompts or cut < limits.smallest_chunk_tokens):
        return 0
    return cut


@kernel
def has_room(engine, limits, request, need, headroom_blocks):
    """Whether a request without memory can be admitted (rule 4); `need`: blocks of its chunk and what is kept."""
    if engine.holders >= limits.holder_budget:
        return False
    return room_for(engine, limits, request, need, headroom_blocks, engine.holders) <= engine.free_blocks


@kernel
def room_for(engine, limits, request, need, headroom_blocks, holders):
    """Blocks that have to be free for a request to be admitted beside so many holders (rule 4)."""
    room = need
    if limits.reserve_context:
        room = blocks_for(request.prompt_tokens + request.emitted_tokens, engine.block_tokens)
    if holders > 0:
        room += limits.watermark_blocks + headroom_blocks
    return room


@kernel
def make_room(run, decider, e, place, need, may_give_up, now_s):
    """Evict by victim rank until `need` blocks are free (rule 5).

    False: the request at `place` was the victim itself (with may_give_up False it never is), or there is none left.
    """
    engine, queue = run.engines[e], run.queues[e]
    rank_victims(run, decider, e, now_s)
    while engine.free_blocks < need:
        victim = -1
        for other in range(engine.queue_length):
            request = run.requests[queue[other]]
            if request.blocks == 0 or request.task >= 0 or (other == place and not may_give_up):
                continue
            if victim < 0 or gives_up_before(run.plan, other, victim):
                victim = other
        if victim < 0:
            return False
        evict(run, e, victim)
        if victim == place:
            return False
    return True


@kernel
def make_room_for_newcomer(run, decider, e, place, need, now_s):
    """Evict those who would give up memory before the request at `place` until it finds room (rule 4).

    False: they do not hold enough between them, and nobody was evicted.
    """
    engine, queue, plan = run.engines[e], run.queues[e], run.plan
    if engine.holders >= run.limits[0].holder_budget:
        return False
    rank_victims(run, decider, e, now_s)
    holders, blocks = 0, 0
    for other in range(engine.queue_length):
        holder = run.requests[queue[other]]
        if holder.blocks > 0 and holder.task < 0 and gives_up_before(plan, other, place):
            holders += 1
            blocks += holder.blocks
    request, headroom = run.requests[queue[place]], plan[place].headroom_blocks
    room = room_for(engine, run.limits[0], request, need, headroom, engine.holders - holders)
    if room > engine.free_blocks + blocks:
        return False
    while not has_room(engine, run.limits[0], request, need, headroom):
        victim = -1
        for other in range(engine.queue_length):
            holder = run.requests[queue[other]]
            if holder.blocks > 0 and holder.task < 0 and (victim < 0 or gives_up_before(plan, other, victim)):
                victim = other
        evict(run, e, victim)
    return True


@kernel
def rank_victims(run, decider, e, now_s):
    """Have the policy write victim ranks, once an attempt."""
    engine, packing = run.engines[e], run.packing[0]
    if packing.victims_ranked == 1:
        return
    for place in range(engine.queue_length):
        run.plan[place].keep_tokens = 0
    decider.victims(
        now_s, engine, run.requests, run.queues[e][: engine.queue_length], state_of(run.state, e), run.parameters[e],
        decider.estimator, run.plan, run.limits[0],
    )  # fmt: skip
    packing.victims_ranked = 1


@kernel
def evict(run, e, place):
    """Take the memory of the request at this place of the queue, and its part in the batch being formed."""
    r = run.queues[e][place]
    request, engine, clock, packing = run.requests[r], run.engines[e], run.clock[0], run.packing[0]
    save(request, engine, run.plan[place].keep_tokens)
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
        note(run, EVICTED, e, r, request.kept_tokens, 0.0)


@kernel
def admit(run, e, r, now_s):
    """Request r, without memory, is given some; what it has kept is loaded."""
    request, outcome, clock = run.requests[r], run.outcomes[r], run.clock[0]
    clock.admissions += 1
    request.admitted = clock.admissions
    if np.isnan(outcome.admitted_s):
        outcome.admitted_s = now_s
        count_admitted(run.state, e, request)
    if request.kept_tokens > 0:
        if clock.recording:
            note(run, LOADED, e, r, request.kept_tokens, load_time_s(request, run.engines[e]))
        load(request, outcome, run.engines[e])


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
def run_first(run, decider, e, now_s):
    """Nothing fits and there is work: the first-ranked request runs with what fits (Progress).

    False: it cannot, with all the memory of all requests in the queue; some is held for KV that is on its way.
    """
    engine, limits, packing, sums = run.engines[e], run.limits[0], run.packing[0], run.sums[0]
    place = first_ranked(run.plan, engine.queue_length)
    r = run.queues[e][place]
    request = run.requests[r]
    if request.task >= 0:
        return False
    decoding = is_decoding(request)
    least = left_of(request) if limits.whole_prompts else 1
    chunk = max(least, min(left_of(request), limits.chunk_tokens, limits.token_budget))
    if limits.time_budget_s < np.inf:
        budget_s = limits.time_budget_s - engine.moving_s - load_time_s(request, engine)
        estimator = decider.estimator
        fits = batches.largest_chunk(sums, run.sums[1], chunk, cached_of(request), decoding, budget_s, estimator)
        untimed = 0 if decoding else min(chunk, limits.untimed_prefill_tokens)
        chunk = max(least, fits, untimed)
    if blocks_lacking(request, least, engine) > engine.free_blocks:
        # What takes memory must emit a token, or two requests could take it from each other forever.
        chunk = left_of(request)
        lacking = blocks_lacking(request, chunk, engine)
        kept_blocks = engine.leaving_blocks + engine.coming_blocks + blocks_in_tasks(run, e)
        if lacking + request.blocks + kept_blocks > engine.total_blocks:
            return False
        make_room(run, decider, e, place, lacking, False, now_s)
    chunk = min(chunk, (request.blocks + engine.free_blocks) * engine.block_tokens - cached_of(request))
    need = blocks_lacking(request, chunk, engine)
    if request.blocks == 0:
        admit(run, e, r, now_s)
    grow(request, engine, run.blocks[e], need)
    take(request, r, run.entries[e][packing.length], chunk, decoding, packing, sums)
    return True


@kernel
def blocks_in_tasks(run, e):
    """Blocks of the members of suspended tasks."""
    blocks = 0
    if run.engines[e].suspended > 0:
        for place in range(run.engines[e].queue_length):
            request = run.requests[run.queues[e][place]]
            if request.task >= 0:
                blocks += request.blocks
    return blocks

"""Eviction: taking the blocks of running requests for others (rules 4 and 5 of docs/simulation.md)."""

from servegym.simulator.batching.admission import blocks_lacking, can_admit, room_for
from servegym.simulator.batching.ordering import is_evicted_before, leave_out_unlisted
from servegym.simulator.batching.ranking import ask_scheduler
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.memory_hooks import after_victims, before_victims, free_request, next_to_evict
from servegym.simulator.features.packing_hooks import after_dropping, before_waiting
from servegym.simulator.features.speculation import counted_tokens
from servegym.simulator.memory.kv_memory import save
from servegym.simulator.policies.refusals import are_legal_victims
from servegym.simulator.records import batches
from servegym.simulator.records.events import note
from servegym.simulator.records.requests import is_decoding
from servegym.simulator.records.types import EVICTED


@kernel
def make_room(run, decider, e, position, need, may_give_up, now_s):
    """Evict by victim rank until `need` blocks are free (rule 5), and return whether they are.

    False: the request at `position` was its own victim (only with may_give_up), or waits for KV transfers without
    eviction; or there is no victim left, or the policy wrote invalid ranks.
    """
    engine, queue = run.engines[e], run.queues[e]
    if not rank_victims(run, decider, e, now_s):
        return False
    while engine.free_blocks < need:
        victim = -1
        for other in range(engine.queue_length):
            request = run.requests[queue[other]]
            if request.blocks == 0 or request.task >= 0 or (other == position and not may_give_up):
                continue
            if victim < 0 or is_evicted_before(run.ranks, other, victim):
                victim = other
        if victim < 0 or (victim == position and waits_for_transfers(engine, run.requests[queue[position]])):
            return False
        evict(run, e, victim)
        if victim == position:
            return False
    return True


@kernel
def waits_for_transfers(engine, request):
    """Return whether this prefill is the only running request and all other blocks are reserved for KV transfers.

    Those blocks will be free again, so evicting the prefill and computing it again would be wasted work.
    """
    transfers = engine.transfers
    alone = engine.running - transfers.leaving - int(transfers.receiving >= 0) == 1
    return alone and transfers.leaving_blocks + transfers.coming_blocks > 0 and not is_decoding(request)


@kernel
def make_room_to_admit(run, decider, e, position, chunk, now_s):
    """Evict requests that rank as victims before the one at `position` until it can be admitted (rule 4).

    False: they do not have enough blocks, or the policy wrote invalid ranks; then none is evicted, except where
    victims share blocks.
    """
    engine, queue, ranks = run.engines[e], run.queues[e], run.ranks
    if engine.running >= run.limits[0].max_num_seqs:
        return False
    if not rank_victims(run, decider, e, now_s):
        return False
    running, blocks = 0, 0
    for other in range(engine.queue_length):
        other_request = run.requests[queue[other]]
        if other_request.blocks > 0 and other_request.task < 0 and is_evicted_before(ranks, other, position):
            running += 1
            blocks += other_request.blocks
    request, headroom = run.requests[queue[position]], ranks[position].headroom_blocks
    need = blocks_lacking(request, chunk, engine)
    room = room_for(engine, run.limits[0], request, need, headroom, engine.running - running)
    if room > engine.free_blocks + engine.cache.shared_blocks + blocks:
        return False
    while not can_admit(engine, run.limits[0], request, need, headroom):
        victim = position
        for other in range(engine.queue_length):
            other_request = run.requests[queue[other]]
            if other_request.blocks > 0 and other_request.task < 0 and is_evicted_before(ranks, other, victim):
                victim = other
        if victim == position:
            return False
        evict(run, e, victim)
        before_waiting(run, e, queue[position])
        need = blocks_lacking(request, chunk, engine)
    return True


@kernel
def rank_victims(run, decider, e, now_s):
    """Let the policy write victim ranks, once an attempt, and return whether they and keep_tokens are valid."""
    engine, packing = run.engines[e], run.packing[0]
    if packing.victims_ranked == 1:
        return packing.refused == 0
    leave_out_unlisted(run.ranks, run.limits[0], engine.queue_length)
    for position in range(engine.queue_length):
        run.ranks[position].keep_tokens = 0
    considered = engine.cache.considered
    before_victims(run, e)
    ask_scheduler(run, decider.victims, decider.estimator, e, now_s)
    after_victims(run, e, considered)
    packing.victims_ranked = 1
    packing.refused = run.status[0].failed == 1 or not are_legal_victims(run.ranks, engine.queue_length)
    return packing.refused == 0


@kernel
def evict(run, e, position):
    """Evict the request at this position of the queue, and those that count on blocks that it would have computed."""
    if evict_request(run, e, position) == 0:
        return
    position = next_to_evict(run, e)
    while position >= 0:
        run.ranks[position].keep_tokens = 0
        evict_request(run, e, position)
        position = next_to_evict(run, e)


@kernel
def evict_request(run, e, position):
    """Evict the request at this position of the queue, and remove it from the batch being formed.

    Returns the number of its shared blocks that it would have computed in this batch.
    """
    r = run.queues[e][position]
    request, engine, status, packing = run.requests[r], run.engines[e], run.status[0], run.packing[0]
    decoding, unfilled = is_decoding(request), free_request(run, e, r)
    save(request, engine, run.ranks[position].keep_tokens)
    entries = run.entries[e]
    kept, in_batch = 0, False
    for k in range(packing.length):
        if entries[k].request == r:
            packing.tokens -= counted_tokens(entries[k].tokens, decoding, engine)
            in_batch = True
        else:
            entries[kept].request, entries[kept].tokens = entries[k].request, entries[k].tokens
            kept += 1
    packing.length = kept
    request.admitted = 0
    status.evictions += 1
    request.evicted = status.evictions
    engine.totals.evictions += 1
    run.outcomes[r].evictions += 1
    if in_batch:
        after_dropping(run, e, r)
        packing.decodes_fit = 1
        packing.prefills_fit = 1
        batches.begin(run.sums[0], engine)
        for k in range(kept):
            other = run.requests[entries[k].request]
            batches.add(run.sums[0], entries[k].tokens, other.computed_tokens, is_decoding(other))
    if status.recording:
        note(run, EVICTED, e, r, request.offloaded_tokens, 0.0)
    return unfilled

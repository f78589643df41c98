"""Taking memory from requests for others (rules 4 and 5 of docs/simulation.md)."""

from servegym.simulator import batches
from servegym.simulator.admission import has_room, room_for
from servegym.simulator.compilation import kernel
from servegym.simulator.memory import release, save
from servegym.simulator.ordering import gives_up_before
from servegym.simulator.refusals import are_legal_victims
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import state_of
from servegym.simulator.timeline import note
from servegym.simulator.types import EVICTED


@kernel
def make_room(run, decider, e, place, need, may_give_up, now_s):
    """Evict by victim rank until `need` blocks are free (rule 5).

    False: the request at `place` was the victim itself (with may_give_up False it never is), or there is none left, or
    what the policy wrote is refused.
    """
    engine, queue = run.engines[e], run.queues[e]
    if not rank_victims(run, decider, e, now_s):
        return False
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

    False: they do not hold enough between them, or what the policy wrote is refused, and nobody was evicted.
    """
    engine, queue, plan = run.engines[e], run.queues[e], run.plan
    if engine.holders >= run.limits[0].holder_budget:
        return False
    if not rank_victims(run, decider, e, now_s):
        return False
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
        if victim < 0:
            return False
        evict(run, e, victim)
    return True


@kernel
def rank_victims(run, decider, e, now_s):
    """Have the policy write victim ranks, once an attempt. Returns whether those, and what it keeps, are legal."""
    engine, packing = run.engines[e], run.packing[0]
    if packing.victims_ranked == 1:
        return packing.refused == 0
    for place in range(engine.queue_length):
        run.plan[place].keep_tokens = 0
    decider.victims(
        now_s, engine, run.requests, run.queues[e][: engine.queue_length], state_of(run.state, e), run.parameters[e],
        decider.estimator, run.plan, run.limits[0],
    )  # fmt: skip
    packing.victims_ranked = 1
    packing.refused = run.clock[0].failed == 1 or not are_legal_victims(run.plan, engine.queue_length)
    return packing.refused == 0


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

"""KV transfers from prefill to decode engines: to each engine one after the other, as its memory allows.

A request with its first token leaves its prefill engine's queue and goes to the router. Its blocks there are freed when
the KV has arrived; blocks on the decode engine are taken when the transfer begins.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.fleet.held_queues import append, drop_first, to_router
from servegym.simulator.memory.kv_memory import blocks_for, count_blocks, give_back, grow
from servegym.simulator.memory.prefix_caching import release_blocks
from servegym.simulator.records.events import note, push
from servegym.simulator.records.statistics import count_departed
from servegym.simulator.records.types import DEPARTED, EVENT_KV_ARRIVAL, SENT


@kernel
def depart(run, router_state, e, r):
    """Move request r, prefilled on engine e, to the router; its KV stays until it is sent."""
    request, outcome, source = run.requests[r], run.outcomes[r], run.engines[e]
    count_departed(run.state, e, request)
    if run.status[0].recording:
        note(run, DEPARTED, e, r, request.blocks, 0.0)
    source.transfers.leaving += 1
    source.transfers.leaving_blocks += request.blocks
    source.decode_tokens -= request.prompt_tokens + request.num_output_tokens
    outcome.source = e
    request.blocks, request.engine = 0, -1
    to_router(run, router_state, r)


@kernel
def queue_transfer(run, router_state, d, r, now_s):
    """Queue the transfer of request r's KV to engine d."""
    run.requests[r].engine = d
    append(router_state.coming[d], run.outcomes, r)
    start_transfer(run, router_state, d, now_s)


@kernel
def blocks_to_send(run, router_state, d):
    """Return the blocks that the next transfer to engine d needs there; -1: there is none, or no memory for it."""
    engine, queue = run.engines[d], router_state.coming[d]
    if queue.waiting == 0:
        return -1
    need = blocks_for(run.requests[queue.first].computed_tokens, engine.block_tokens)
    if need + (engine.watermark_blocks if engine.running > 0 else 0) > engine.free_blocks:
        return -1
    return need


@kernel
def start_transfer(run, router_state, d, now_s):
    """Start the next transfer to engine d, if the link is free and there is memory."""
    engine, link, queue = run.engines[d], router_state.link[0], router_state.coming[d]
    if engine.transfers.receiving >= 0 or (link.shared and link.busy):
        return
    need = blocks_to_send(run, router_state, d)
    if need < 0:
        return
    r = queue.first
    request = run.requests[r]
    drop_first(queue, run.outcomes)
    count_blocks(engine, now_s)
    grow(request, engine, need)
    engine.transfers.coming_blocks += need
    engine.transfers.receiving = r
    link.busy = 1
    duration_s = link.latency_s + request.computed_tokens * link.s_per_token
    push(run.events, run.status[0], now_s + duration_s, EVENT_KV_ARRIVAL, r)
    if run.status[0].recording:
        note(run, SENT, d, r, need, duration_s)


@kernel
def next_transfer(run, router_state, d, now_s):
    """End a transfer to engine d and start the next: to engine d, or on a shared link the one that waited longest."""
    run.engines[d].transfers.receiving = -1
    router_state.link[0].busy = 0
    if router_state.link[0].shared:
        start_shared(run, router_state, now_s)
    else:
        start_transfer(run, router_state, d, now_s)


@kernel
def start_shared(run, router_state, now_s):
    """While the shared link is free, send the request that waited longest among the first ones with memory."""
    while router_state.link[0].busy == 0:
        first, since_s = -1, 0.0
        for e in range(run.engines.shape[0]):
            if blocks_to_send(run, router_state, e) < 0:
                continue
            waits_since_s = run.outcomes[router_state.coming[e].first].last_token_s
            if first < 0 or waits_since_s < since_s:
                first, since_s = e, waits_since_s
        if first < 0:
            return
        start_transfer(run, router_state, first, now_s)


@kernel
def leave_source(run, r, now_s):
    """Free the blocks of request r on its prefill engine, as its KV has arrived or is lost; return that engine."""
    outcome, computed_tokens = run.outcomes[r], run.requests[r].computed_tokens
    e = outcome.source
    source = run.engines[e]
    held = blocks_for(computed_tokens, source.block_tokens)
    count_blocks(source, now_s)
    if source.cache.on:
        release_blocks(outcome, source, run.cache, held, computed_tokens)
    else:
        give_back(source, held)
    source.transfers.leaving -= 1
    source.transfers.leaving_blocks -= held
    outcome.source = -1
    return e

"""KV on its way from prefill to decode engines: each engine's requests one after the other, as memory there allows.

A request that has its first token leaves its prefill engine's queue. Its blocks stay taken there until the KV has
arrived; blocks on the decode engine are taken when the sending begins.
"""

from servegym.simulator.compilation import kernel
from servegym.simulator.events import push
from servegym.simulator.memory import blocks_for, count_blocks, grow, release_chain
from servegym.simulator.routing import route, send
from servegym.simulator.statistics import count_departed
from servegym.simulator.timeline import note
from servegym.simulator.types import DEPARTED, EVENT_KV_ARRIVAL


@kernel
def depart(run, books, e, r, now_s):
    """Request r, prefilled on engine e, is to go on elsewhere."""
    request, outcome, source = run.requests[r], run.outcomes[r], run.engines[e]
    if outcome.decode_engine < 0:
        route(run, books, r, now_s)
        outcome.decode_engine = books.route[0].engine
    d = outcome.decode_engine
    count_departed(run.state, e, request)
    if run.clock[0].recording:
        note(run, DEPARTED, e, r, request.blocks, 0.0)
    source.leaving += 1
    source.leaving_blocks += request.blocks
    source.decode_tokens -= request.prompt_tokens + request.emitted_tokens
    outcome.source, outcome.source_block, outcome.next_coming = e, request.last_block, -1
    request.blocks, request.last_block, request.engine = 0, -1, d
    send(books, d, r, request, now_s)
    target = run.engines[d]
    if target.coming == 0:
        target.first_coming = r
    else:
        run.outcomes[target.last_coming].next_coming = r
    target.last_coming = r
    target.coming += 1
    start_transfer(run, books, d, now_s)


@kernel
def start_transfer(run, books, d, now_s):
    """Send the KV of the first request that waits to go to engine d, if the link is free and there is memory."""
    engine, link = run.engines[d], books.link[0]
    if engine.coming == 0 or engine.link_busy or (link.shared and link.busy):
        return
    r = engine.first_coming
    request, outcome = run.requests[r], run.outcomes[r]
    need = blocks_for(request.computed_tokens, engine.block_tokens)
    if need + (engine.watermark_blocks if engine.holders > 0 else 0) > engine.free_blocks:
        return
    count_blocks(engine, now_s)
    grow(request, engine, run.blocks[d], need)
    engine.first_coming = outcome.next_coming
    engine.coming -= 1
    engine.coming_blocks += need
    engine.link_busy = 1
    link.busy = 1
    duration_s = link.latency_s + request.computed_tokens * link.s_per_token
    push(run.events, run.clock[0], now_s + duration_s, EVENT_KV_ARRIVAL, r)


@kernel
def next_transfer(run, books, d, now_s):
    """The link to engine d is free: the next request of that engine, or where it is shared the one prefilled first."""
    run.engines[d].link_busy = 0
    books.link[0].busy = 0
    if not books.link[0].shared:
        start_transfer(run, books, d, now_s)
        return
    while books.link[0].busy == 0:
        # The engine whose first request has waited longest and finds memory.
        first, since_s = -1, 0.0
        for e in range(run.engines.shape[0]):
            engine = run.engines[e]
            if engine.coming == 0:
                continue
            request, waits_since_s = run.requests[engine.first_coming], run.outcomes[engine.first_coming].last_token_s
            need = blocks_for(request.computed_tokens, engine.block_tokens)
            if need + (engine.watermark_blocks if engine.holders > 0 else 0) > engine.free_blocks:
                continue
            if first < 0 or waits_since_s < since_s:
                first, since_s = e, waits_since_s
        if first < 0:
            return
        start_transfer(run, books, first, now_s)


@kernel
def leave_source(run, r, now_s):
    """The KV of request r has arrived: its blocks on the engine that prefilled it are free. Returns that engine."""
    outcome = run.outcomes[r]
    e = outcome.source
    source = run.engines[e]
    count_blocks(source, now_s)
    before = source.free_blocks
    release_chain(outcome.source_block, source, run.blocks[e])
    source.leaving -= 1
    source.leaving_blocks -= source.free_blocks - before
    outcome.source = -1
    return e

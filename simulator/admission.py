"""Giving memory to a request that has none (rule 4 of docs/simulation.md)."""

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.memory import blocks_for, load, load_time_s
from servegym.simulator.requests import cached_of
from servegym.simulator.statistics import count_admitted
from servegym.simulator.timeline import note
from servegym.simulator.types import LOADED


@kernel
def blocks_lacking(request, chunk, engine):
    """Blocks that the request needs, over those it holds, to compute a chunk."""
    tokens = cached_of(request) + chunk
    if tokens <= request.blocks * engine.block_tokens:
        return 0
    return blocks_for(tokens, engine.block_tokens) - request.blocks


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
    if holders > 0:  # more than there is in all is as much as that: sums stay small
        room += min(limits.watermark_blocks, engine.total_blocks) + min(headroom_blocks, engine.total_blocks)
    return room


@kernel
def admit(run, e, r, now_s):
    """Request r, without memory, is given some; what it has kept is loaded."""
    request, outcome, status = run.requests[r], run.outcomes[r], run.status[0]
    status.admissions += 1
    request.admitted = status.admissions
    if np.isnan(outcome.admitted_s):
        outcome.admitted_s = now_s
    if outcome.counted == 0:
        outcome.counted = 1
        count_admitted(run.state, e, request)
    if request.kept_tokens > 0:
        if status.recording:
            note(run, LOADED, e, r, request.kept_tokens, load_time_s(request, run.engines[e]))
        load(request, outcome, run.engines[e])

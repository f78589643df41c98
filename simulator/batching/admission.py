"""Admission: when a waiting request gets blocks, and how many (rule 4 of docs/simulation.md)."""

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.memory_hooks import has_groups, tokens_to_load
from servegym.simulator.memory.kv_groups import blocks_with, largest_chunk_within, most_held_blocks
from servegym.simulator.memory.kv_memory import blocks_for, grow, load
from servegym.simulator.memory.prefix_caching import grow_named, name_filled
from servegym.simulator.records.events import note
from servegym.simulator.records.requests import cached_of
from servegym.simulator.records.statistics import count_admitted
from servegym.simulator.records.types import LOADED, NOT_PREEMPTIBLE


@kernel
def blocks_lacking(request, chunk, engine):
    """Return how many more blocks the request needs to compute a chunk.

    With KV cache groups it may be negative: the request gives back blocks that its windows have left.
    """
    if has_groups(engine):
        return blocks_with(engine.kv_groups, request, chunk) - request.blocks
    tokens = cached_of(request) + chunk
    if tokens <= request.blocks * engine.block_tokens:
        return 0
    return blocks_for(tokens, engine.block_tokens) - request.blocks


@kernel
def can_admit(engine, limits, request, need, headroom_blocks):
    """Return whether a waiting request can be admitted (rule 4). need: blocks of its chunk and of its existing KV."""
    if engine.running >= limits.max_num_seqs:
        return False
    # Cached blocks that running requests have need no free block; without a look-up, shared_blocks is 0.
    room = room_for(engine, limits, request, need, headroom_blocks, engine.running)
    return room <= engine.free_blocks + engine.cache.shared_blocks


@kernel
def room_for(engine, limits, request, need, headroom_blocks, running):
    """Return the blocks that must be free to admit a request beside `running` requests (rule 4)."""
    room = need
    if limits.reserve_context:
        context = request.prompt_tokens + request.num_output_tokens
        if has_groups(engine):
            in_flight = min(context, limits.max_num_batched_tokens) * (1 + engine.ahead.on)
            room = max(need, most_held_blocks(engine.kv_groups, context, in_flight, cached_of(request)))
        else:
            room = blocks_for(context, engine.block_tokens)
    if running > 0:  # capped, so that sums do not overflow
        room += min(limits.watermark_blocks, engine.total_blocks) + min(headroom_blocks, engine.total_blocks)
    return room


@kernel
def chunk_within(request, engine, chunk, room):
    """Return the chunk, cut to what `room` blocks hold, including those that the request has."""
    if has_groups(engine):
        return largest_chunk_within(engine.kv_groups, request, chunk, room)
    return min(chunk, room * engine.block_tokens - cached_of(request))


@kernel
def admit(run, e, r, now_s):
    """Admit waiting request r: count it, and load its offloaded KV."""
    request, outcome, engine, status = run.requests[r], run.outcomes[r], run.engines[e], run.status[0]
    status.admissions += 1
    request.admitted = status.admissions
    if np.isnan(outcome.admitted_s):
        outcome.admitted_s = now_s
    if outcome.counted == 0:
        engine.totals.admitted_tokens += request.prompt_tokens + request.num_output_tokens
        engine.totals.cached_tokens += cached_of(request)
    to_load = tokens_to_load(run, e, r)
    if outcome.counted == 0:
        outcome.counted = 1
        count_admitted(run.state, e, request)
    if request.offloaded_tokens > 0 or to_load > 0:
        if status.recording and to_load > 0:
            note(run, LOADED, e, r, to_load, to_load * engine.load_s_per_token)
        load(request, outcome, engine, to_load)


@kernel
def names_at_end(run, engine):
    """Return whether blocks get names at the end too: of drafts, KV cache groups, or batches that can be suspended."""
    return run.state.tasks.shape[1] > 0 or engine.speculation.k > 0 or has_groups(engine)


@kernel
def give_to_decode(run, e, r, now_s):
    """Give running decode r the block that it lacks for its next token, and name the one that the token fills."""
    request, engine = run.requests[r], run.engines[e]
    left = request.blocks * engine.block_tokens - request.computed_tokens
    if (
        left <= 1
        or left > engine.block_tokens  # another block than its last one may fill, as drafts may have been rejected
        or engine.ahead.on == 1  # earlier blocks may lack names
        or run.state.tasks.shape[1] > 0
    ):
        give_named_blocks(run, e, r, 1, now_s)


@kernel
def give_named_blocks(run, e, r, chunk, now_s):
    """Give request r the blocks that it lacks for its chunk, and name them (prefix caching, rule 6)."""
    request, outcome, engine = run.requests[r], run.outcomes[r], run.engines[e]
    named_tokens = 0
    if request.blocks == 0:
        admit(run, e, r, now_s)
    elif run.state.tasks.shape[1] == 0 and engine.ahead.on == 0:  # else what it has computed may still lack names
        named_tokens = request.computed_tokens
    tokens = request.computed_tokens + chunk
    if named_tokens == 0 or has_groups(engine) or tokens > request.blocks * engine.block_tokens:
        grow_named(request, outcome, engine, run.cache, tokens)
    if not names_at_end(run, engine) or run.limits[0].preemptible == NOT_PREEMPTIBLE:
        known = request.prompt_tokens + request.num_output_tokens - outcome.under_way
        name_filled(r, outcome, engine, run.cache, named_tokens, min(tokens, known))


@kernel
def give_grouped_blocks(run, e, r, chunk, now_s):
    """Give request r the blocks that it lacks, or take back those that it frees (KV cache groups)."""
    request, engine = run.requests[r], run.engines[e]
    need = blocks_lacking(request, chunk, engine)
    if request.blocks == 0:
        admit(run, e, r, now_s)
    grow(request, engine, need)

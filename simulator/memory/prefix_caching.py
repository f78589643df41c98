"""Prefix caching: requests with the same prefix share KV blocks, as in vLLM V1. docs/feature_rules.md.

While the packer considers a waiting request, its cached tokens count as computed and its cached blocks are in its
table, though it does not hold them yet. So the packer needs no rule of its own for them. KV cache groups:
grouped_prefixes.py.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.prefetching import prefetch
from servegym.simulator.memory.block_stores import count_stored, keep_name, use_stored
from servegym.simulator.memory.grouped_prefixes import (
    grow_in_groups,
    hold_in_groups,
    lacks_names,
    lookup_in_groups,
    name_in_groups,
    release_in_groups,
)
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.events import note
from servegym.simulator.records.named_blocks import (
    ask_for_name,
    find_from,
    give_name,
    hold_block,
    mark_changed,
    name_of,
    place_of_name,
    release_block,
    take_first,
    take_name,
)
from servegym.simulator.records.types import FOUND

BLOCKS_AHEAD = 8  # blocks: looking up so many takes as long as the latency of memory


@kernel
def lookup_prefix(run, e, r):
    """Look up the cached blocks of waiting request r at engine e.

    They count as its own until `cancel_prefix_lookup`, or for good if it is admitted.
    """
    cancel_prefix_lookup(run, e)
    request, engine, cache, table = run.requests[r], run.engines[e], run.cache, run.outcomes[r].table
    engine.cache.considered, engine.cache.offloaded_tokens = r, request.offloaded_tokens
    if engine.kv_groups.on > 0:
        tokens, engine.cache.found_blocks, engine.cache.shared_blocks = lookup_in_groups(run, e, r)
        request.computed_tokens = tokens
        return
    blocks, places = cache.blocks[e], cache.places[e]
    most = (request.prompt_tokens + request.num_output_tokens - 1) // engine.block_tokens  # one token is computed
    found, shared = 0, 0
    for i in range(min(most, 2 * BLOCKS_AHEAD)):
        ask_for_place(r, table, engine, cache, i)
    for i in range(min(most, BLOCKS_AHEAD)):
        ask_for_oldest(table, blocks, places, cache, i)
    while found < most:
        if found + 2 * BLOCKS_AHEAD < most:
            ask_for_place(r, table, engine, cache, found + 2 * BLOCKS_AHEAD)
        if found + BLOCKS_AHEAD < most:
            ask_for_oldest(table, blocks, places, cache, found + BLOCKS_AHEAD)
        block = find_from(cache.tables[table + found], blocks, name_of(cache, r, found, engine.block_tokens))
        if block < 0:
            break
        cache.tables[table + found] = block
        shared += blocks[block].references > 0
        found += 1
    engine.cache.found_blocks, engine.cache.shared_blocks = found, shared
    request.computed_tokens = found * engine.block_tokens
    request.offloaded_tokens = max(0, request.offloaded_tokens - request.computed_tokens)
    if engine.block_store.total_blocks > 0:
        stored = count_stored(engine, cache, r, found, most)
        if stored * engine.block_tokens > request.offloaded_tokens:
            engine.cache.stored_blocks, request.offloaded_tokens = stored, stored * engine.block_tokens


@kernel
def ask_for_place(r, table, engine, cache, i):
    """Write the place of the name of block i of request r to its block table, and prefetch it."""
    places = cache.places[engine.index]
    place = place_of_name(places, name_of(cache, r, i, engine.block_tokens))
    cache.tables[table + i] = place
    prefetch(places, place)


@kernel
def ask_for_oldest(table, blocks, places, cache, i):
    """Replace the place that `ask_for_place` wrote by the first block of its chain, and prefetch that block."""
    oldest = places[cache.tables[table + i]] - 1
    cache.tables[table + i] = oldest
    prefetch(blocks, oldest)


@kernel
def cancel_prefix_lookup(run, e):
    """Undo the look-up of the request under consideration, if there is one; it was not admitted."""
    cache = run.engines[e].cache
    if cache.considered >= 0:
        request = run.requests[cache.considered]
        request.computed_tokens, request.offloaded_tokens = 0, cache.offloaded_tokens
    cache.considered, cache.found_blocks, cache.shared_blocks, cache.stored_blocks = -1, 0, 0, 0


@kernel
def hold_found(run, e, r):
    """Let request r, which is admitted, hold the blocks that its look-up found. Returns the tokens to load.

    Its offloaded_tokens are restored to their number before the look-up.
    """
    request, outcome, engine, cache = run.requests[r], run.outcomes[r], run.engines[e], run.cache
    blocks, found = cache.blocks[e], engine.cache.found_blocks
    if engine.kv_groups.on > 0:
        hold_in_groups(outcome, engine, cache)
    else:
        for i in range(found):
            hold_block(engine, blocks, cache.tables[outcome.table + i])
    to_load, request.offloaded_tokens = request.offloaded_tokens, engine.cache.offloaded_tokens
    from_store = engine.cache.stored_blocks * engine.block_tokens
    if from_store > 0:
        use_stored(engine, cache, r, found, engine.cache.stored_blocks)
    if outcome.counted:
        engine.totals.regained_tokens += request.computed_tokens
    else:
        outcome.cached_tokens += max(0, request.computed_tokens + from_store - request.offloaded_tokens)
    if found > 0:
        request.blocks = found
        engine.running += 1
    if request.computed_tokens > 0 and run.status[0].recording:
        note(run, FOUND, e, r, request.computed_tokens, 0.0)
    engine.cache.considered, engine.cache.found_blocks, engine.cache.shared_blocks = -1, 0, 0
    engine.cache.stored_blocks = 0
    return to_load


@kernel
def grow_named(request, outcome, engine, cache, tokens):
    """Give the request the blocks that it lacks for `tokens` in all; the caller has checked that they are free."""
    if engine.kv_groups.on > 0:
        grow_in_groups(request, outcome, engine, cache, tokens)
        return
    blocks, count = cache.blocks[engine.index], blocks_for(tokens, engine.block_tokens)
    if request.blocks == 0 and count > 0:
        engine.running += 1
    for i in range(request.blocks, count):
        overwritten = blocks[engine.cache.first_free].name
        if overwritten != 0 and engine.block_store.total_blocks > 0:
            keep_name(engine.block_store, cache, engine.index, overwritten)
        block = take_first(engine, cache.places[engine.index], blocks)
        blocks[block].references = 1
        cache.tables[outcome.table + i] = block
    request.blocks = max(request.blocks, count)
    engine.totals.peak_blocks = max(engine.totals.peak_blocks, engine.total_blocks - engine.free_blocks)


@kernel
def name_filled(r, outcome, engine, cache, before, tokens):
    """Name the blocks that the first `tokens` of request r fill and that have no name yet.

    before: tokens whose blocks have their names; so a decode reads a block only when it fills one.
    """
    if engine.kv_groups.on > 0:
        name_in_groups(r, outcome, engine, cache, tokens)
        return
    if tokens % engine.block_tokens >= tokens - before:  # no block ends in between
        return
    blocks, places, i = cache.blocks[engine.index], cache.places[engine.index], tokens // engine.block_tokens - 1
    named = before // engine.block_tokens
    while i >= 0:
        block = cache.tables[outcome.table + i]
        if blocks[block].name != 0:
            break
        if i >= named + BLOCKS_AHEAD:
            ask_for_name(places, name_of(cache, r, i - BLOCKS_AHEAD, engine.block_tokens))
        give_name(places, blocks, block, name_of(cache, r, i, engine.block_tokens))
        mark_changed(engine, blocks, block)
        i -= 1


@kernel
def ask_for_filled(r, request, outcome, engine, cache):
    """Prefetch what names the last block of request r before a token fills it.

    Four tokens before that: where its chunks are. Three: the numbers of the block and of its chunk. Two: the block, and
    the place of its name. One: the block that has this place.
    """
    tokens = request.blocks * engine.block_tokens
    left = tokens - request.computed_tokens
    if left > 4 or left < 1:
        return
    if left == 4:
        prefetch(cache.offsets, r)
        return
    if left == 3:
        prefetch(cache.tables, outcome.table + request.blocks - 1)
        if cache.chunk_tokens > 0:
            prefetch(cache.chunks, cache.offsets[r] + (tokens - 1) // cache.chunk_tokens)
        return
    places, blocks = cache.places[engine.index], cache.blocks[engine.index]
    place = place_of_name(places, name_of(cache, r, request.blocks - 1, engine.block_tokens))
    if left == 2:
        prefetch(places, place)
        prefetch(blocks, cache.tables[outcome.table + request.blocks - 1])
    else:
        prefetch(blocks, places[place] - 1)


@kernel
def release_blocks(outcome, engine, cache, count, computed_tokens):
    """Free the `count` blocks of a request. Returns how many lose their names because they were not filled."""
    if engine.kv_groups.on > 0:
        return release_in_groups(outcome, engine, cache, computed_tokens)
    blocks, unfilled = cache.blocks[engine.index], 0
    for i in range(computed_tokens // engine.block_tokens, count):
        block = cache.tables[outcome.table + i]
        if blocks[block].name != 0:
            mark_changed(engine, blocks, block)
            take_name(cache.places[engine.index], blocks, block)
            unfilled += 1
    for i in range(count - 1, -1, -1):
        if i >= BLOCKS_AHEAD:
            prefetch(blocks, cache.tables[outcome.table + i - BLOCKS_AHEAD])
        release_block(engine, blocks, cache.tables[outcome.table + i])
    engine.running -= 1
    return unfilled


@kernel
def free_named_blocks(run, e, r):
    """Free all blocks of request r. Returns how many blocks that it was to fill in the batch being formed lose names.

    Call it before computed_tokens changes.
    """
    request, engine = run.requests[r], run.engines[e]
    if request.blocks == 0:
        return 0
    unfilled = release_blocks(run.outcomes[r], engine, run.cache, request.blocks, request.computed_tokens)
    request.blocks = 0
    return unfilled


@kernel
def first_with_lost_prefix(run, e):
    """Return the queue position of the first request in the batch being formed with a computed block that lost its
    name; -1: none.
    """
    engine, cache, queue = run.engines[e], run.cache, run.queues[e]
    for k in range(run.packing[0].length):
        r = run.entries[e, k].request
        if lost_names(run.requests[r], run.outcomes[r], engine, cache):
            for position in range(engine.queue_length):
                if queue[position] == r:
                    return position
    return -1


@kernel
def lost_names(request, outcome, engine, cache):
    """Return whether a computed block of the request has lost its name."""
    if engine.kv_groups.on > 0:
        return lacks_names(outcome, engine, cache)
    known = request.prompt_tokens + request.num_output_tokens - outcome.under_way
    for i in range(min(request.computed_tokens, known) // engine.block_tokens):
        if cache.blocks[engine.index, cache.tables[outcome.table + i]].name == 0:
            return True
    return False

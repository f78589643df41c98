"""Prefix caching with KV cache groups, as in vLLM ("Prefix caching with groups" of docs/feature_rules.md).

A hit needs all groups, and each group names its own blocks of the pool that they share.

Cache.tables has of request r, from outcomes[r].table on, the numbers below, and then a row for each group, full groups
first: the block at each place, while the request has it or is looked up; NONE where there is no state. Where chunks of
requests with states end: state_chunks.py.
"""

import math
from collections.abc import Sequence

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.kv_groups import LOCAL, STATES, KvCacheGroup, first_seen, held_blocks, writes_inside
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.named_blocks import (
    NAMES_OF_A_CHUNK,
    find_block,
    give_name,
    hold_block,
    mark_changed,
    name_of,
    release_block,
    take_first,
    take_name,
)

# Numbers of a request: places in a row of a full group, and of a window or state group; tokens found at its admission;
# tokens that it has blocks for; first place of its windows that it has; tokens at which a later request may reuse its
# prompt; tokens that full groups alone have cached (0: no more than windows have).
FULL_ROW, WINDOW_ROW, FOUND_TOKENS, HELD_TOKENS, FIRST, REPLAY, JUNCTION, NUMBERS = range(8)
NONE = -1
NO_ROOM = -(2**40)  # in place of shared blocks: the request must wait for the next batch, even if others are evicted

LESS = "switch prefix_caching off, or append :kv_groups=mean to the device to count all tokens of a request alike"


def refused_with(groups: Sequence[KvCacheGroup]) -> str | None:
    """Return in words which of the groups prefix caching is not simulated with; None: it is with all."""
    local, states = [group for group in groups if group.local], any(group.state for group in groups)
    if states and any(group.window for group in groups):
        return "windows beside states of fixed size"
    if groups and all(group.state for group in groups) and len({group.block_tokens for group in groups}) > 1:
        return "states of fixed size alone, in blocks of different sizes"
    if groups and all(group.local or group.window == 1 for group in groups):
        return "local windows, or windows of one token, alone"
    if local and any(local[0].block_tokens % group.block_tokens for group in groups):
        return "local windows whose blocks are not multiples of the other groups' blocks"
    if local and local[0].window % local[0].block_tokens:
        return "local windows that are not multiples of their blocks"
    return None


def check_caching(groups: Sequence[KvCacheGroup], where: str) -> None:
    """Raise DeploymentError for groups with which prefix caching is not simulated."""
    what = refused_with(groups)
    if what is not None:
        raise DeploymentError(f"{where}: prefix caching is not simulated with {what}; {LESS}")


def cells_for(groups: Sequence[KvCacheGroup], tokens: np.ndarray, where: str) -> np.ndarray:
    """Return int64[requests]: cells of each request in Cache.tables. tokens: int64[requests], of prompts and answers.

    Raises DeploymentError for more blocks than names can tell apart.
    """
    of_full = [group.block_tokens for group in groups if not group.state and not group.window]
    sizes = [of_full[0] if group.state and of_full else group.block_tokens for group in groups]
    cells: np.ndarray = NUMBERS + np.sum([-(-tokens // size) for size in sizes], axis=0)
    places = len(groups) * -(-tokens // min(sizes))
    if (places >= NAMES_OF_A_CHUNK).any():
        raise DeploymentError(
            f"{where}: a request has up to {places.max()} blocks in its KV cache groups; with prefix caching at most "
            f"{NAMES_OF_A_CHUNK} are simulated; {LESS}"
        )
    return cells


@kernel
def hit_tokens(kinds):
    """Return the unit of hits: the least common multiple of the groups' block sizes, in tokens."""
    if kinds.full == 0:
        return kinds.window_block_tokens
    if kinds.windows == 0:
        return kinds.full_block_tokens
    a, b = kinds.full_block_tokens, kinds.window_block_tokens
    return a // math.gcd(a, b) * b


@kernel
def window_blocks(kinds):
    """Return the blocks before its end that a hit needs of a sliding window; 1 for a state."""
    if kinds.local == STATES:
        return 1
    return blocks_for(kinds.window - 1, kinds.window_block_tokens)


@kernel
def size_of(kinds, g):
    """Return the tokens of a block of group g."""
    return kinds.full_block_tokens if g < kinds.full else kinds.window_block_tokens


@kernel
def row_of(kinds, cache, outcome, g):
    """Return the cell of the first block of group g."""
    start = outcome.table + NUMBERS
    if g < kinds.full:
        return start + g * cache.tables[outcome.table + FULL_ROW]
    start += kinds.full * cache.tables[outcome.table + FULL_ROW]
    return start + (g - kinds.full) * cache.tables[outcome.table + WINDOW_ROW]


@kernel
def name_in_group(kinds, prompts, r, i, g):
    """Return the name of block i of request r in group g: that of `name_of`, plus the group.

    prompts: which chunks requests have (Cache, Prefixes).
    """
    name, group = name_of(prompts, r, i, size_of(kinds, g)), i * (kinds.on - 1) + g
    return name + group if name > 0 else name - group


@kernel
def found_in(places, blocks, kinds, prompts, r, i, first_group, groups):
    """Return whether each of these groups has block i of request r. places: the hash table of the blocks' names."""
    for g in range(first_group, first_group + groups):
        if find_block(places, blocks, name_in_group(kinds, prompts, r, i, g)) < 0:
            return False
    return True


@kernel
def find_in_full(places, blocks, kinds, prompts, r, most):
    """Return how many tokens of request r's prefix, at most `most`, all full groups have cached."""
    found = 0
    while found < most // kinds.full_block_tokens and found_in(places, blocks, kinds, prompts, r, found, 0, kinds.full):
        found += 1
    step = hit_tokens(kinds)
    return found * kinds.full_block_tokens // step * step


@kernel
def find_in_windows(places, blocks, kinds, prompts, r, most):
    """Return the longest prefix of request r, at most `most` tokens, with all its windows or states cached.

    Of a window, the part is needed that the next token sees.
    """
    size = kinds.window_block_tokens
    if kinds.local == LOCAL:
        found = first_seen(kinds, most)
        while found < most // size and found_in(places, blocks, kinds, prompts, r, found, kinds.full, kinds.windows):
            found += 1
        return found * size
    step, need, run = hit_tokens(kinds), max(1, window_blocks(kinds)), 0
    for i in range(most // size - 1, -1, -1):
        if run == 0 and (i + 1) * size % step != 0:
            continue
        if found_in(places, blocks, kinds, prompts, r, i, kinds.full, kinds.windows):
            run += 1
            if run == need:
                return (i + run) * size
        else:
            run = 0
    return run * size


@kernel
def lookup_in_groups(run, e, r):
    """Look up waiting request r in the groups of engine e.

    Returns tokens and blocks found, and how many of these blocks running requests have (NO_ROOM: it must wait).
    """
    request, outcome, engine, cache = run.requests[r], run.outcomes[r], run.engines[e], run.cache
    kinds, tables, base = engine.kv_groups, cache.tables, outcome.table
    tokens, step = request.prompt_tokens + outcome.output_tokens, hit_tokens(kinds)
    tables[base + FULL_ROW] = blocks_for(tokens, kinds.full_block_tokens)
    tables[base + WINDOW_ROW] = blocks_for(tokens, kinds.window_block_tokens)
    tables[base + REPLAY] = (request.prompt_tokens - 1) // step * step
    hit = request.prompt_tokens + request.num_output_tokens - 1  # one token is computed anew
    if kinds.full > 0:
        hit = find_in_full(cache.places[e], cache.blocks[e], kinds, cache, r, hit)
    longest = hit
    if kinds.windows > 0:
        hit = find_in_windows(cache.places[e], cache.blocks[e], kinds, cache, r, hit)
    tables[base + JUNCTION] = longest if kinds.full > 0 and longest > hit else 0
    tables[base + FOUND_TOKENS], tables[base + FIRST] = hit, first_seen(kinds, hit)
    shared = 0
    for g in range(kinds.on):
        row = row_of(kinds, cache, outcome, g)
        for i in range(first_of(kinds, cache, outcome, g), hit // size_of(kinds, g)):
            tables[row + i] = find_block(cache.places[e], cache.blocks[e], name_in_group(kinds, cache, r, i, g))
            shared += cache.blocks[e, tables[row + i]].references > 0
    if kinds.local == STATES and hit > 0 and awaits_state(run, e, outcome, hit):
        shared = NO_ROOM
    return hit, held_blocks(kinds, hit, hit, hit), shared


@kernel
def awaits_state(run, e, outcome, hit):
    """Return whether a request in the batch being formed computes a state that the request has found."""
    kinds, cache = run.engines[e].kv_groups, run.cache
    blocks, place = cache.blocks[e], hit // kinds.window_block_tokens - 1
    for k in range(run.packing[0].length):
        r = run.entries[e, k].request
        other = run.outcomes[r]
        if run.requests[r].computed_tokens >= hit or cache.tables[other.table + HELD_TOKENS] < hit:
            continue
        for g in range(kinds.full, kinds.on):
            block = cache.tables[row_of(kinds, cache, other, g) + place]
            found = cache.tables[row_of(kinds, cache, outcome, g) + place]
            if block != NONE and blocks[block].name == blocks[found].name:
                return True
    return False


@kernel
def first_of(kinds, cache, outcome, g):
    """Return the first place of group g at which the request has a block."""
    return 0 if g < kinds.full else cache.tables[outcome.table + FIRST]


@kernel
def hold_in_groups(outcome, engine, cache):
    """Let the request hold the blocks that its look-up found."""
    kinds, blocks, found = engine.kv_groups, cache.blocks[engine.index], cache.tables[outcome.table + FOUND_TOKENS]
    for g in range(kinds.on):
        row = row_of(kinds, cache, outcome, g)
        for i in range(first_of(kinds, cache, outcome, g), found // size_of(kinds, g)):
            hold_block(engine, blocks, cache.tables[row + i])
    cache.tables[outcome.table + HELD_TOKENS] = found


@kernel
def drop_unseen(request, outcome, engine, cache, processed):
    """Free the blocks of the request that no token after the first `processed` ones sees."""
    kinds, blocks = engine.kv_groups, cache.blocks[engine.index]
    first, now = cache.tables[outcome.table + FIRST], first_seen(kinds, processed)
    if request.blocks == 0 or kinds.windows == 0 or now <= first:
        return
    for g in range(kinds.full, kinds.full + kinds.windows):
        row = row_of(kinds, cache, outcome, g)
        for i in range(now - 1, first - 1, -1):
            if cache.tables[row + i] != NONE:
                release_block(engine, blocks, cache.tables[row + i])
                request.blocks -= 1
    cache.tables[outcome.table + FIRST] = now


@kernel
def grow_in_groups(request, outcome, engine, cache, tokens):
    """Give the request the blocks that it lacks for `tokens` in all; the caller has checked that they are free."""
    kinds, blocks, held = engine.kv_groups, cache.blocks[engine.index], cache.tables[outcome.table + HELD_TOKENS]
    if tokens <= held:
        return
    inside = writes_inside(kinds, request, request.computed_tokens, tokens)
    engine.running += request.blocks == 0
    for g in range(kinds.on):
        row, size = row_of(kinds, cache, outcome, g), size_of(kinds, g)
        for i in range(blocks_for(held, size), blocks_for(tokens, size)):
            after = tokens - (i + 1) * size
            if g >= kinds.full and kinds.local == STATES and after > 0 and not (inside and after <= size):
                cache.tables[row + i] = NONE  # the chunk does not end here, so no state is kept
                continue
            block = take_first(engine, cache.places[engine.index], blocks)
            blocks[block].references = 1
            cache.tables[row + i] = block
            request.blocks += 1
    cache.tables[outcome.table + HELD_TOKENS] = tokens
    engine.totals.peak_blocks = max(engine.totals.peak_blocks, engine.total_blocks - engine.free_blocks)


@kernel
def name_places(r, outcome, engine, cache, g, first, end):
    """Name the blocks of request r in group g at places first..end-1 that have no name yet."""
    kinds, blocks, row = engine.kv_groups, cache.blocks[engine.index], row_of(engine.kv_groups, cache, outcome, g)
    for i in range(max(first, first_of(kinds, cache, outcome, g)), end):
        block = cache.tables[row + i]
        if block != NONE and blocks[block].name == 0:
            give_name(cache.places[engine.index], blocks, block, name_in_group(kinds, cache, r, i, g))
            mark_changed(engine, blocks, block)


@kernel
def name_in_groups(r, outcome, engine, cache, tokens):
    """Name the blocks that the first `tokens` of request r fill.

    All blocks of full groups and local windows are named; of sliding windows and states, those that end where a later
    request may reuse the prompt.
    """
    kinds, tables, step = engine.kv_groups, cache.tables, hit_tokens(engine.kv_groups)
    filled = tokens // step * step
    for g in range(kinds.full):
        first = filled // kinds.full_block_tokens  # all blocks before a named one are named
        while first > 0 and cache.blocks[engine.index, tables[row_of(kinds, cache, outcome, g) + first - 1]].name == 0:
            first -= 1
        name_places(r, outcome, engine, cache, g, first, filled // kinds.full_block_tokens)
    for g in range(kinds.full, kinds.full + kinds.windows):
        size = kinds.window_block_tokens
        if kinds.local == LOCAL:
            name_places(r, outcome, engine, cache, g, 0, filled // size)
            continue
        for boundary in (tables[outcome.table + REPLAY], tables[outcome.table + JUNCTION]):
            end = boundary // size
            name_places(r, outcome, engine, cache, g, end - window_blocks(kinds), min(end, filled // size))


@kernel
def release_in_groups(outcome, engine, cache, computed_tokens):
    """Free all blocks of a request. Returns how many lose their names because they were not filled."""
    kinds, blocks, unfilled = engine.kv_groups, cache.blocks[engine.index], 0
    for g in range(kinds.on):
        row, size, first = row_of(kinds, cache, outcome, g), size_of(kinds, g), first_of(kinds, cache, outcome, g)
        count = blocks_for(cache.tables[outcome.table + HELD_TOKENS], size)
        for i in range(max(first, computed_tokens // size), count):
            block = cache.tables[row + i]
            if block != NONE and blocks[block].name != 0:
                mark_changed(engine, blocks, block)
                take_name(cache.places[engine.index], blocks, block)
                unfilled += 1
        for i in range(count - 1, first - 1, -1):
            if cache.tables[row + i] != NONE:
                release_block(engine, blocks, cache.tables[row + i])
    engine.running -= 1
    return unfilled


@kernel
def lacks_names(outcome, engine, cache):
    """Return whether a block that the request found has lost its name."""
    kinds, found = engine.kv_groups, cache.tables[outcome.table + FOUND_TOKENS]
    for g in range(kinds.on):
        row = row_of(kinds, cache, outcome, g)
        for i in range(first_of(kinds, cache, outcome, g), found // size_of(kinds, g)):
            block = cache.tables[row + i]
            if block != NONE and cache.blocks[engine.index, block].name == 0:
                return True
    return False

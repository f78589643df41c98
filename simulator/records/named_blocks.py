"""Named KV blocks for prefix caching: a name stands for a block's contents, and free blocks wait in a queue.

Any number of requests may hold a block; each request has a table of its blocks. Free blocks are a doubly linked list
through the blocks themselves. A place of the hash table of names has the number of the first block of its chain plus
one; 0: it has none. So each operation on a block takes constant time. docs/feature_rules.md, "Memory".
"""

from typing import Annotated, NamedTuple

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.prefetching import prefetch
from servegym.simulator.records.fields import Field, Value, numba_type, zeros
from servegym.simulator.records.types import record

NAMED_BLOCK = record(
    [
        ("name", "i8"),  # name of its contents; 0: none
        ("references", "i4"),  # requests that hold it
        ("before", "i4"),  # previous and next block in the queue of free blocks; -1: none
        ("after", "i4"),
        ("newer", "i4"),  # next block in the chain of blocks whose names have the same place; -1: none
        ("changed", "i4"),  # next block with a name that the router has not heard of; -1: the last; UNCHANGED
    ]
)
UNCHANGED = -2
NAMES_OF_A_CHUNK = 2**25  # greater than the blocks of any request
NEIGHBOURS, SPREAD = 4, 40_503  # chunks whose names have neighbouring places; factor that spreads the others


class Cache(NamedTuple):
    """Blocks of the engines that cache prefixes, and the chunks that name them; empty arrays where no engine does."""

    blocks: Annotated[np.ndarray, Field(NAMED_BLOCK, ("engines", "named_blocks"), "KV memory of each")]
    places: Annotated[np.ndarray, Field("i4", ("engines", "places"), "their hash table of names")]
    stored: Annotated[np.ndarray, Field(NAMED_BLOCK, ("engines", "stored_blocks"), "the block store of each")]
    stored_places: Annotated[np.ndarray, Field("i4", ("engines", "stored_places"), "its hash table of names")]
    tables: Annotated[np.ndarray, Field("i4", ("cells",), "request r has the blocks tables[outcomes[r].table :]")]
    chunk_tokens: Annotated[int, Value(types.int64, "tokens in a chunk; 0: requests have no chunks")]
    offsets: Annotated[np.ndarray, Field("i8", ("offsets",), "request r has chunks[offsets[r]:offsets[r + 1]]")]
    chunks: Annotated[np.ndarray, Field("i4", ("chunks",), "of prompts and answers; equal numbers, equal beginnings")]


CACHE = numba_type(Cache)


def empty_named_blocks(counts: list[int]) -> np.ndarray:
    """Return NAMED_BLOCK[engines, largest count]: counts[e] free blocks of engine e without names, block 0 first."""
    table = zeros((len(counts), max(counts)), NAMED_BLOCK)
    if not table.size:
        return table
    table[0]["newer"], table[0]["changed"] = -1, UNCHANGED
    table[0]["before"], table[0]["after"] = np.arange(-1, max(counts) - 1), np.arange(1, max(counts) + 1)
    rows = table.view("u1")
    rows[1:] = rows[0]  # NumPy would copy records field by field
    for row, blocks in zip(table, counts, strict=True):
        row["after"][blocks:] = 0
        row["after"][blocks - 1 : blocks] = -1
    return table


def no_names(blocks: np.ndarray) -> np.ndarray:
    """Return int32[engines, places]: an empty hash table of names for the blocks of each engine."""
    return np.zeros((len(blocks), 2 ** (2 * blocks.shape[1] - 1).bit_length() if blocks.size else 0), "i4")


@kernel
def name_of(prompts, r, i, block_tokens):
    """Return the name of block i of request r when it is full: by the chunk in which it ends, else a negative one.

    prompts: a Cache or Prefixes, with the chunks of requests. Only the request itself has negative names.
    """
    if prompts.chunk_tokens > 0:
        ends_in = i if prompts.chunk_tokens == block_tokens else ((i + 1) * block_tokens - 1) // prompts.chunk_tokens
        chunk = prompts.offsets[r] + ends_in
        if chunk < prompts.offsets[r + 1]:
            return (np.int64(prompts.chunks[chunk]) + 1) * NAMES_OF_A_CHUNK + i
    return -((np.int64(r) + 1) * NAMES_OF_A_CHUNK + i)


@kernel
def place_of_name(places, name):
    """Return the place of a name in the hash table.

    Blocks that follow each other in a prompt have neighbouring places, many in one cache line.
    """
    chunk = name // NAMES_OF_A_CHUNK
    hashed = chunk // NEIGHBOURS * SPREAD + chunk % NEIGHBOURS + name % NAMES_OF_A_CHUNK
    return hashed & (places.shape[0] - 1)


@kernel
def find_block(places, blocks, name):
    """Return the block with a name, of several the one that was named first; -1: there is none."""
    return find_from(places[place_of_name(places, name)] - 1, blocks, name)


@kernel
def find_from(block, blocks, name):
    """Return the first block with a name in a chain from `block` on; -1: there is none."""
    while block >= 0 and blocks[block].name != name:
        block = blocks[block].newer
    return block


@kernel
def ask_for_name(places, name):
    """Prefetch the place of a name in the hash table."""
    prefetch(places, place_of_name(places, name))


@kernel
def give_name(places, blocks, block, name):
    """Give a name to a block that has none: append it to its chain."""
    place = place_of_name(places, name)
    blocks[block].name, blocks[block].newer = name, -1
    last = places[place] - 1
    if last < 0:
        places[place] = block + 1
        return
    while blocks[last].newer >= 0:
        last = blocks[last].newer
    blocks[last].newer = block


@kernel
def take_name(places, blocks, block):
    """Remove the block's name."""
    one, place = blocks[block], place_of_name(places, blocks[block].name)
    older = places[place] - 1
    if older == block:
        places[place] = one.newer + 1
    else:
        while blocks[older].newer != block:
            older = blocks[older].newer
        blocks[older].newer = one.newer
    one.name, one.newer = 0, -1


@kernel
def ask_for_free(engine, blocks):
    """Prefetch the free block that is taken next."""
    prefetch(blocks, engine.cache.first_free)


@kernel
def mark_changed(engine, blocks, block):
    """Queue a KV event of a block that has got its name or will lose it, if its name is one that can be shared."""
    one, cache = blocks[block], engine.cache
    if cache.publishes == 1 and one.name > 0 and one.changed == UNCHANGED:
        one.changed = cache.first_changed
        cache.first_changed = block


@kernel
def queue_last(engine, blocks, block):
    """Append a block to the queue of free blocks, to be reused last."""
    one, cache = blocks[block], engine.cache
    one.before, one.after = cache.last_free, -1
    if cache.last_free >= 0:
        blocks[cache.last_free].after = block
    else:
        cache.first_free = block
    cache.last_free = block
    engine.free_blocks += 1


@kernel
def queue_first(engine, blocks, block):
    """Insert a block at the front of the queue of free blocks, to be reused next."""
    one, cache = blocks[block], engine.cache
    one.before, one.after = -1, cache.first_free
    if cache.first_free >= 0:
        blocks[cache.first_free].before = block
    else:
        cache.last_free = block
    cache.first_free = block
    engine.free_blocks += 1


@kernel
def leave_queue(engine, blocks, block):
    """Remove a block from the queue of free blocks."""
    one, cache = blocks[block], engine.cache
    if one.before >= 0:
        blocks[one.before].after = one.after
    else:
        cache.first_free = one.after
    if one.after >= 0:
        blocks[one.after].before = one.before
    else:
        cache.last_free = one.before
    engine.free_blocks -= 1


@kernel
def take_first(engine, places, blocks):
    """Take the first free block and remove its name; the caller has checked that there is one."""
    block = engine.cache.first_free
    leave_queue(engine, blocks, block)
    if blocks[block].name != 0:
        mark_changed(engine, blocks, block)
        take_name(places, blocks, block)
        engine.totals.overwritten_blocks += 1
    return block


@kernel
def hold_block(engine, blocks, block):
    """Increment the block's reference count; a free block leaves the queue and keeps its contents."""
    if blocks[block].references == 0:
        leave_queue(engine, blocks, block)
    blocks[block].references += 1


@kernel
def release_block(engine, blocks, block):
    """Decrement the block's reference count. At 0 the block is free: last in the queue if it has a name, else first."""
    blocks[block].references -= 1
    if blocks[block].references == 0:
        if blocks[block].name != 0:
            queue_last(engine, blocks, block)
        else:
            queue_first(engine, blocks, block)


@kernel
def lose_names(places, blocks):
    """Remove the names of all blocks."""
    for place in range(places.shape[0]):
        places[place] = 0
    for block in range(blocks.shape[0]):
        blocks[block].name, blocks[block].newer, blocks[block].changed = 0, -1, UNCHANGED

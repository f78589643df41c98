"""KV memory of one engine: reference-counted blocks in chains, and host memory beside it.

Every block knows the block before it in its sequence; a request holds the end of its chain. A block is free again when
neither a request nor a later block refers to it. (Engines that cache prefixes have other blocks: named_blocks.py.)
"""

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.types import record

BLOCK = record(
    [
        ("previous", "i4"),  # the block before it in the sequence; -1: it is the first
        ("references", "i4"),  # requests that end here + blocks that follow
        ("free", "i4"),  # stack of free blocks, as positions 0 .. free_blocks - 1 of this column
    ]
)


def empty_blocks(counts: list[int]) -> np.ndarray:
    """BLOCK[engines, most blocks]: so many blocks of each engine, all free; block 0 is taken first."""
    table = np.zeros((len(counts), max(counts)), BLOCK)
    table["previous"] = -1
    for row, blocks in zip(table, counts, strict=True):
        row["free"][:blocks] = np.arange(blocks - 1, -1, -1)
    return table


@kernel
def blocks_for(tokens, block_tokens):
    """Blocks that hold this many tokens."""
    return (tokens + block_tokens - 1) // block_tokens


@kernel
def count_blocks(engine, now_s):
    """Bring the integral of blocks in use up to now; call before free_blocks changes."""
    used = engine.total_blocks - engine.free_blocks
    engine.totals.block_seconds += used * (now_s - engine.totals.blocks_counted_s)
    engine.totals.blocks_counted_s = now_s


@kernel
def grow(request, engine, blocks, count):
    """Give `request` `count` more blocks; the caller has checked that they are free."""
    if request.blocks == 0 and count > 0:
        engine.holders += 1
    last = request.last_block
    for _ in range(count):
        engine.free_blocks -= 1
        block = blocks[engine.free_blocks].free
        blocks[block].previous = last
        blocks[block].references = 1
        # The reference that the request had on its last block passes to the new block that follows it.
        last = block
    request.last_block = last
    request.blocks += count
    used = engine.total_blocks - engine.free_blocks
    engine.totals.peak_blocks = max(engine.totals.peak_blocks, used)


@kernel
def release(request, engine, blocks):
    """Take all blocks from `request`; those that nothing else refers to are free again."""
    if request.blocks == 0:
        return
    release_chain(request.last_block, engine, blocks)
    request.blocks = 0
    request.last_block = -1


@kernel
def release_chain(last_block, engine, blocks):
    """A holder gives up the chain that ends there; blocks that nothing else refers to are free again."""
    block = last_block
    while block >= 0:
        blocks[block].references -= 1
        if blocks[block].references > 0:
            break
        blocks[engine.free_blocks].free = block
        engine.free_blocks += 1
        block = blocks[block].previous
    engine.holders -= 1


@kernel
def save(request, engine, keep_tokens):
    """Of the computed tokens of a victim save what is asked for and fits host memory; call before `release`.

    What is saved counts as kept, all else is lost.
    """
    kept = min(keep_tokens, request.computed_tokens, engine.free_host_blocks * engine.block_tokens)
    engine.free_host_blocks -= blocks_for(kept, engine.block_tokens)
    engine.totals.saved_tokens += kept
    engine.moving_s += kept * engine.save_s_per_token
    request.kept_tokens = kept
    request.computed_tokens = 0


@kernel
def load(request, outcome, engine, tokens):
    """Load so much of what the request has kept; the caller has checked that there are blocks, and gives them."""
    give_up_kept(request, outcome, engine)
    engine.totals.loaded_tokens += tokens
    engine.moving_s += tokens * engine.load_s_per_token
    request.computed_tokens += tokens


@kernel
def give_up_kept(request, outcome, engine):
    """The request keeps nothing any more; the host memory that this took, if it was its own, is free."""
    if outcome.borrowed == 0:
        engine.free_host_blocks += blocks_for(request.kept_tokens, engine.block_tokens)
    request.kept_tokens = 0
    outcome.borrowed = 0


@kernel
def load_time_s(request, engine):
    """Time to load what the request has kept."""
    return request.kept_tokens * engine.load_s_per_token

"""KV memory and host memory of an engine as counts of blocks, as it does not matter which blocks a request has.

At engines that cache prefixes, blocks have names and requests share them: named_blocks.py.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.types import MOST_FILLINGS


@kernel
def blocks_for(tokens, block_tokens):
    """Return the number of blocks that hold this many tokens."""
    return (tokens + block_tokens - 1) // block_tokens


@kernel
def count_blocks(engine, now_s):
    """Update the integral of blocks in use up to now; call it before free_blocks changes."""
    used = engine.total_blocks - engine.free_blocks
    engine.totals.block_seconds += used * (now_s - engine.totals.blocks_counted_s)
    engine.totals.blocks_counted_s = now_s


@kernel
def grow(request, engine, count):
    """Give the request `count` more blocks; the caller has checked that they are free."""
    if request.blocks == 0 and count > 0:
        engine.running += 1
    engine.free_blocks -= count
    request.blocks += count
    used = engine.total_blocks - engine.free_blocks
    engine.totals.peak_blocks = max(engine.totals.peak_blocks, used)


@kernel
def release(request, engine):
    """Free all blocks of the request."""
    if request.blocks > 0:
        give_back(engine, request.blocks)
        request.blocks = 0


@kernel
def give_back(engine, blocks):
    """Free the blocks of a request that is no longer running."""
    engine.free_blocks += blocks
    engine.running -= 1


@kernel
def save(request, engine, keep_tokens):
    """Save up to keep_tokens of a victim's computed tokens to host memory, as far as they fit.

    Saved tokens become offloaded_tokens; the others are lost.
    """
    kept = min(keep_tokens, request.computed_tokens, engine.free_host_blocks * engine.block_tokens)
    engine.free_host_blocks -= blocks_for(kept, engine.block_tokens)
    engine.totals.saved_tokens += kept
    engine.moving_s += kept * engine.save_s_per_token
    request.offloaded_tokens = kept
    request.computed_tokens = 0


@kernel
def load(request, outcome, engine, tokens):
    """Load `tokens` of the request's offloaded KV; the caller gives it the blocks for them."""
    drop_offloaded(request, outcome, engine)
    engine.totals.loaded_tokens += tokens
    engine.moving_s += tokens * engine.load_s_per_token
    request.computed_tokens += tokens


@kernel
def drop_offloaded(request, outcome, engine):
    """Drop the request's offloaded KV, and free its host memory unless the KV is in the prefix store."""
    if outcome.borrowed == 0:
        engine.free_host_blocks += blocks_for(request.offloaded_tokens, engine.block_tokens)
    request.offloaded_tokens = 0
    outcome.borrowed = 0


@kernel
def load_time_s(request, engine):
    """Return the time to load the request's offloaded KV, in s."""
    return request.offloaded_tokens * engine.load_s_per_token


@kernel
def is_thrashing(engine):
    """Return whether over MOST_FILLINGS times the engine's memory was computed since its last token or KV transfer."""
    if engine.transfers.coming_blocks > 0:  # its request may finish
        engine.totals.scheduled_before = engine.scheduled_tokens
    memory_tokens = engine.total_blocks * engine.block_tokens
    return engine.scheduled_tokens - engine.totals.scheduled_before > MOST_FILLINGS * memory_tokens

"""KV memory of one engine, and host memory beside it: blocks are counted, as nothing depends on which a request has.

(Of engines that cache prefixes each block is one by itself, and requests share them: named_blocks.py.)
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.types import MOST_FILLINGS


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
def grow(request, engine, count):
    """Give `request` `count` more blocks; the caller has checked that they are free."""
    if request.blocks == 0 and count > 0:
        engine.running += 1
    engine.free_blocks -= count
    request.blocks += count
    used = engine.total_blocks - engine.free_blocks
    engine.totals.peak_blocks = max(engine.totals.peak_blocks, used)


@kernel
def release(request, engine):
    """Take all blocks from `request`."""
    if request.blocks > 0:
        give_back(engine, request.blocks)
        request.blocks = 0


@kernel
def give_back(engine, blocks):
    """A running request gives up its blocks."""
    engine.free_blocks += blocks
    engine.running -= 1


@kernel
def save(request, engine, keep_tokens):
    """Save up to keep_tokens of a victim's computed tokens to host memory, as far as they fit; call before `release`.

    Saved tokens become offloaded_tokens, all others are lost.
    """
    kept = min(keep_tokens, request.computed_tokens, engine.free_host_blocks * engine.block_tokens)
    engine.free_host_blocks -= blocks_for(kept, engine.block_tokens)
    engine.totals.saved_tokens += kept
    engine.moving_s += kept * engine.save_s_per_token
    request.offloaded_tokens = kept
    request.computed_tokens = 0


@kernel
def load(request, outcome, engine, tokens):
    """Load `tokens` of the request's offloaded KV; the caller has checked that blocks are free, and gives them."""
    give_up_kept(request, outcome, engine)
    engine.totals.loaded_tokens += tokens
    engine.moving_s += tokens * engine.load_s_per_token
    request.computed_tokens += tokens


@kernel
def give_up_kept(request, outcome, engine):
    """Drop the request's offloaded KV, and free the host memory it took unless that was borrowed."""
    if outcome.borrowed == 0:
        engine.free_host_blocks += blocks_for(request.offloaded_tokens, engine.block_tokens)
    request.offloaded_tokens = 0
    outcome.borrowed = 0


@kernel
def load_time_s(request, engine):
    """Time to load what the request has kept."""
    return request.offloaded_tokens * engine.load_s_per_token


@kernel
def is_thrashing(engine):
    """Whether the engine has computed so much since its last token, or since KV was last on its way here, that it must
    have been in vain."""
    if engine.transfers.coming_blocks > 0:  # once that KV is here its request can end, and leave its memory to others
        engine.totals.scheduled_before = engine.scheduled_tokens
    memory_tokens = engine.total_blocks * engine.block_tokens
    return engine.scheduled_tokens - engine.totals.scheduled_before > MOST_FILLINGS * memory_tokens

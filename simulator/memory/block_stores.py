"""Block stores: host memory that keeps named blocks when they are overwritten ("Host memory" of
docs/feature_rules.md).

A store is named blocks (named_blocks.py) that no request holds: its queue is the order of their last use.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.named_blocks import find_block, give_name, leave_queue, name_of, queue_last, take_name


@kernel
def keep_name(store, cache, e, name):
    """Mark the block with this name as used last; if there is none, name the least recently used block.

    store: of engine e.
    """
    blocks, places = cache.stored[e], cache.stored_places[e]
    block = find_block(places, blocks, name)
    if block < 0:
        block = store.cache.first_free
        if blocks[block].name != 0:
            take_name(places, blocks, block)
        give_name(places, blocks, block, name)
    leave_queue(store, blocks, block)
    queue_last(store, blocks, block)


@kernel
def count_stored(engine, cache, r, first, most):
    """Return how many consecutive blocks of request r the store has, from `first` on and below `most`."""
    count = 0
    while first + count < most:
        name = name_of(cache, r, first + count, engine.block_tokens)
        if find_block(cache.stored_places[engine.index], cache.stored[engine.index], name) < 0:
            break
        count += 1
    return count


@kernel
def use_stored(engine, cache, r, first, count):
    """Mark `count` blocks of request r, from `first` on, as used; the last block is marked first, so it goes first."""
    for i in range(first + count - 1, first - 1, -1):
        keep_name(engine.block_store, cache, engine.index, name_of(cache, r, i, engine.block_tokens))

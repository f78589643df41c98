"""The compiled part of planning on blocks: the pool that plans work on, made equal to the mirror's where it is not.

A plan takes, shares and frees few blocks, and so does vLLM in a step. Blocks that neither has moved keep their order in
every list. So where a row of such a block is not the same in both pools, the block has one that was moved beside it, in
one of them. Moved blocks are noted; before the next plan they and their neighbours in both pools are copied, and
nothing else.

moved: int32[total_blocks + 1], a list of blocks through its own cells. The last cell has the first of them; END: there
is no other; NOT_NOTED: the block is not in it.
"""

import numpy as np
from numba import types

from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.signatures import QUEUE
from servegym.simulator.records.state import SIMULATION_STATE

END, NOT_NOTED = -1, -2


def nothing_moved(total_blocks: int) -> np.ndarray:
    """int32[total_blocks + 1]: the list of moved blocks, empty."""
    moved = np.full(total_blocks + 1, NOT_NOTED, "i4")
    moved[total_blocks] = END
    return moved


@kernel
def note_moved(moved, block):
    """The block, if there is one (not below 0), is in the list."""
    if block >= 0 and moved[block] == NOT_NOTED:
        first = moved.shape[0] - 1
        moved[block] = moved[first]
        moved[first] = block


@kernel
def note_neighbours(moved, blocks, block):
    """In the list are those beside the block in the queue and under its name, and the place of its name."""
    one = blocks[block]
    note_moved(moved, one.before)
    note_moved(moved, one.after)
    note_moved(moved, one.older)
    note_moved(moved, one.newer)
    if one.name != 0:
        note_moved(moved, one.name % (moved.shape[0] - 1))


up_to_date_signature = types.void(SIMULATION_STATE, SIMULATION_STATE, QUEUE)


@compiled(up_to_date_signature)
def bring_up_to_date(planned, run, moved):
    """Make the blocks that plans work on those of the mirror, of which `moved` are the ones moved in either."""
    ours, theirs, first = planned.cache.blocks[0], run.cache.blocks[0], moved.shape[0] - 1
    block = moved[first]
    while block >= 0:  # neighbours come before the first: they are not gone through
        note_neighbours(moved, ours, block)
        note_neighbours(moved, theirs, block)
        block = moved[block]
    block = moved[first]
    while block >= 0:
        ours[block] = theirs[block]
        following = moved[block]
        moved[block] = NOT_NOTED
        block = following
    moved[first] = END


note_plan_signature = types.void(SIMULATION_STATE, SIMULATION_STATE, QUEUE)


@compiled(note_plan_signature)
def note_plan(planned, run, moved):
    """Note the blocks that a plan, just made or failed, has moved. What gave up memory has its table again."""
    tables, theirs = planned.cache.tables, run.cache.tables
    for position in range(planned.engines[0].queue_length):
        r = planned.queues[0, position]
        request, evicted = planned.requests[r], planned.requests[r].evicted > run.status[0].evictions
        if request.blocks == 0 and not evicted:
            continue
        before, table = run.requests[r].blocks, run.outcomes[r].table
        if evicted:
            context = request.prompt_tokens + request.num_output_tokens
            for i in range(max(before, blocks_for(context, run.engines[0].block_tokens))):
                note_moved(moved, tables[table + i])
            for i in range(before):
                note_moved(moved, theirs[table + i])
                tables[table + i] = theirs[table + i]
            continue
        # What it has taken or found, and before that what it has filled: this had no name, or is its last block.
        for i in range(request.blocks - 1, -1, -1):
            block = tables[table + i]
            if i < before - 1 and run.cache.blocks[0, block].name != 0:
                break
            note_moved(moved, block)

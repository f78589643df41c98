"""The kernels that make the pool of blocks that plans work on equal to the mirror's again.

A plan takes, shares and frees few blocks, and so does vLLM in a step. Blocks that neither has moved keep their order in
every list, so a block whose row differs between the two pools either was moved or is next to a moved block in one of
them. Moved blocks are noted; before the next plan, they and their neighbours in both pools are copied, and nothing
else.

moved: int32[total_blocks + 1], a linked list of blocks: cell `block` holds the next block, the last cell the first one.
END: end of the list; NOT_NOTED: the block is not in the list.
"""

import numpy as np
from numba import types

from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.signatures import QUEUE
from servegym.simulator.records.state import SIMULATION_STATE

END, NOT_NOTED = -1, -2


def nothing_moved(total_blocks: int) -> np.ndarray:
    """int32[total_blocks + 1]: an empty list of moved blocks."""
    moved = np.full(total_blocks + 1, NOT_NOTED, "i4")
    moved[total_blocks] = END
    return moved


@kernel
def note_moved(moved, block):
    """Put a block into the list, unless it is below 0, which is none."""
    if block >= 0 and moved[block] == NOT_NOTED:
        first = moved.shape[0] - 1
        moved[block] = moved[first]
        moved[first] = block


@kernel
def note_neighbours(moved, blocks, block):
    """Put the neighbours of a block in the free queue and in the list of its name, and the slot of its name, into the
    list."""
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
    """Copy the blocks in `moved`, moved in either pool, and their neighbours from the mirror to the planned pool."""
    ours, theirs, first = planned.cache.blocks[0], run.cache.blocks[0], moved.shape[0] - 1
    block = moved[first]
    while block >= 0:  # neighbours are put in front of the list, so this loop does not reach them
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
    """Note the blocks that a plan, made or failed, has moved; restore the tables of its victims."""
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
        # From the last block back: blocks that it has taken or found, then those it has filled.
        for i in range(request.blocks - 1, -1, -1):
            block = tables[table + i]
            if i < before - 1 and run.cache.blocks[0, block].name != 0:
                break
            note_moved(moved, block)

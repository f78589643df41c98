"""The kernels that make the pool of blocks that plans work on equal to the mirror's again.

A plan takes, shares and frees few blocks, and so does vLLM in a step. Blocks that neither has moved keep their order in
every list. Where a block's row differs between the two pools, that block was moved, or one beside it was: in the free
queue, or in the chain of its name. Moved blocks are noted; before the next plan, they and those beside them are copied,
with the places of their names, and nothing else.

moved: int32[total_blocks + 1], a linked list of blocks: cell `block` holds the next block, the last cell the first one.
END: end of the list; NOT_NOTED: the block is not in the list.
"""

import numpy as np

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.records.named_blocks import place_of_name
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
    """Put the neighbours of a block in the free queue into the list."""
    note_moved(moved, blocks[block].before)
    note_moved(moved, blocks[block].after)


@kernel
def note_chain(moved, places, blocks, name):
    """Put the blocks in the chain of a name into the list; 0: no name."""
    block = places[place_of_name(places, name)] - 1 if name != 0 else -1
    while block >= 0:
        note_moved(moved, block)
        block = blocks[block].newer


@kernel
def copy_place(ours, theirs, name):
    """Copy the place of a name; 0: no name."""
    if name != 0:
        place = place_of_name(theirs, name)
        ours[place] = theirs[place]


up_to_date_signature = types.void(SIMULATION_STATE, SIMULATION_STATE, QUEUE)


@compiled(up_to_date_signature)
def bring_up_to_date(planned, run, moved):
    """Copy the blocks in `moved`, moved in either pool, and those beside them from the mirror to the planned pool."""
    ours, theirs, first = planned.cache.blocks[0], run.cache.blocks[0], moved.shape[0] - 1
    our_places, their_places = planned.cache.places[0], run.cache.places[0]
    block = moved[first]
    while block >= 0:  # others are put in front of the list, so this loop does not reach them
        note_neighbours(moved, ours, block)
        note_neighbours(moved, theirs, block)
        for name in (ours[block].name, theirs[block].name):
            note_chain(moved, our_places, ours, name)
            note_chain(moved, their_places, theirs, name)
        block = moved[block]
    block = moved[first]
    while block >= 0:
        copy_place(our_places, their_places, ours[block].name)
        copy_place(our_places, their_places, theirs[block].name)
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

"""The kernel that replays operations of vLLM's block pool on the mirror's named blocks.

An operation is (what, at, value). Blocks are numbered from 0; vLLM numbers them from 1, its block 0 is a placeholder.
"""

from servegym.adapters.vllm.planned_blocks import note_moved
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.records.named_blocks import (
    give_name,
    hold_block,
    leave_queue,
    lose_names,
    release_block,
    take_name,
)
from servegym.simulator.records.signatures import QUEUE
from servegym.simulator.records.state import SIMULATION_STATE

TAKEN, TOUCHED, FREED, NAMED, UNNAMED, HELD, GIVEN_UP, RESET = range(8)
OPERATIONS = types.Array(types.int64, 2, "C")
replay_signature = types.void(SIMULATION_STATE, QUEUE, QUEUE, OPERATIONS)


@compiled(replay_signature)
def replay(run, planned_tables, moved, operations):
    """Replay operations, int64[n, 3], on engine 0.

    TAKEN: block `at` leaves the free list for a request. TOUCHED: a request finds block `at` in the cache, so its
    reference count grows. FREED: its reference count falls. NAMED: its name is now `value`. UNNAMED: it loses its name.
    RESET: all blocks lose theirs. HELD: `value` is the next block in the table of row `at`. GIVEN_UP: that table is
    empty. planned_tables: the tables that plans work on, updated too. moved: list of the blocks that the operations
    have moved (planned_blocks.py).
    """
    engine, cache, blocks, places = run.engines[0], run.cache, run.cache.blocks[0], run.cache.places[0]
    for k in range(operations.shape[0]):
        what, at, value = operations[k, 0], operations[k, 1], operations[k, 2]
        if what in (TAKEN, TOUCHED, FREED, NAMED, UNNAMED):
            note_moved(moved, at)
        if what == TAKEN:
            leave_queue(engine, blocks, at)
            if blocks[at].name != 0:
                take_name(places, blocks, at)
            blocks[at].references = 1
        elif what == TOUCHED:
            hold_block(engine, blocks, at)
        elif what == FREED:
            release_block(engine, blocks, at)
        elif what == NAMED:
            if blocks[at].name != value:
                if blocks[at].name != 0:
                    take_name(places, blocks, at)
                give_name(places, blocks, at, value)
        elif what == UNNAMED:
            if blocks[at].name != 0:
                take_name(places, blocks, at)
        elif what == HELD:
            request, cell = run.requests[at], run.outcomes[at].table + run.requests[at].blocks
            cache.tables[cell] = value
            planned_tables[cell] = value
            engine.running += request.blocks == 0
            request.blocks += 1
        elif what == GIVEN_UP:
            request = run.requests[at]
            engine.running -= request.blocks > 0
            request.blocks = 0
            request.computed_tokens = 0
        else:
            lose_names(places, blocks)
            for block in range(engine.total_blocks):
                note_moved(moved, block)

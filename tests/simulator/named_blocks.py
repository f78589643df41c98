"""What must hold of the memory of an engine that caches prefixes, whenever nobody works on it."""

from collections import Counter

import numpy as np

from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.records.named_blocks import name_of, place_of_name
from servegym.simulator.runs.simulation import Simulation


def assert_memory_is_whole(simulation: Simulation, e: int) -> None:
    """Blocks are held by those in whose tables they are, or free and in the queue once; every name is found."""
    arrays, engine = simulation.arrays, simulation.arrays.engines[e]
    blocks, name = arrays.cache.blocks[e, : engine.total_blocks], plain_function(name_of)
    queue = arrays.queues[e, : engine.queue_length]
    held: Counter[int] = Counter()
    counts = {int(r): int(arrays.requests[r].blocks) for r in queue if arrays.requests[r].blocks > 0}
    for r in np.flatnonzero(arrays.outcomes["source"] == e):
        counts[int(r)] = -(-int(arrays.requests[r].computed_tokens) // engine.block_tokens)
    running = set(arrays.entries["request"][e, : engine.batch_length].tolist())
    scenario = simulation.scenario
    suspends = any((pool.scheduler or scenario.scheduler).state.tasks for pool in scenario.deployment.pools)
    for r, count in counts.items():
        start, computed = int(arrays.outcomes[r].table), int(arrays.requests[r].computed_tokens)
        table = arrays.cache.tables[start : start + count].tolist()
        assert len(set(table)) == count and all(0 <= block < engine.total_blocks for block in table)
        assert count * engine.block_tokens >= computed
        filled = [int(blocks[block].name) for block in table[: computed // engine.block_tokens]]
        # What was loaded for a batch that can be suspended has names when that ends, be it a task or not.
        if arrays.requests[r].task >= 0 or (suspends and r in running):
            while filled and filled[-1] == 0:
                filled.pop()
        assert filled == [int(name(arrays.cache, r, i, int(engine.block_tokens))) for i in range(len(filled))]
        if r not in running and arrays.requests[r].task < 0:
            assert all(blocks[block].name == 0 for block in table[len(filled) :]), "named before it was filled"
        held.update(table)
    assert {b: int(n) for b, n in enumerate(blocks["references"]) if n} == dict(held)
    free, before, block = [], -1, int(engine.cache.first_free)
    while block >= 0:
        assert blocks[block].before == before
        free.append(block)
        before, block = block, int(blocks[block].after)
    assert engine.cache.last_free == before and len(free) == engine.free_blocks
    assert sorted([*free, *held]) == list(range(engine.total_blocks)), "a block is lost, or is in two places"
    named = [bool(blocks[block].name) for block in free]
    assert named == sorted(named), "what holds nothing is taken first"
    found = []
    for place, first in enumerate(arrays.cache.places[e]):
        block = int(first) - 1
        while block >= 0:
            assert plain_function(place_of_name)(arrays.cache.places[e], int(blocks[block].name)) == place
            found.append(block)
            block = int(blocks[block].newer)
    assert sorted(found) == np.flatnonzero(blocks["name"]).tolist()
    assert engine.cache.considered == -1 and engine.cache.shared_blocks == 0

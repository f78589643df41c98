"""What must hold of the memory of an engine with KV cache groups that caches prefixes, whenever nobody works on it."""

import dataclasses
from collections import Counter

import numpy as np

from servegym.simulator.memory.grouped_prefixes import NONE, NUMBERS
from servegym.simulator.runs.simulation import Simulation
from tests.reference.kv_groups import KvGroup, with_caching


def assert_groups_are_whole(simulation: Simulation, e: int) -> None:
    """Every block is free or held as often as requests count it; each holds, in each group, what it must."""
    arrays, engine = simulation.arrays, simulation.arrays.engines[e]
    pool = [pool for pool in simulation.scenario.deployment.pools for _ in range(pool.engines)][e]
    groups = with_caching([KvGroup(**dataclasses.asdict(group)) for group in pool.kv_groups])
    blocks = arrays.cache.blocks[e, : engine.total_blocks]
    held: Counter[int] = Counter()
    for r in arrays.queues[e, : engine.queue_length].tolist():
        request, outcome = arrays.requests[r], arrays.outcomes[r]
        if request.blocks == 0:
            continue
        rows = rows_of(arrays.cache.tables[int(outcome.table) :], groups)
        assert request.blocks == sum(map(len, rows))
        for group, row in zip(groups, rows, strict=True):
            places = set(row)
            first = group.first(int(request.computed_tokens))
            begin = int(request.computed_tokens) - 1 if group.state else first  # of states the last one
            seen = {token // group.block_tokens for token in range(max(0, begin), int(request.computed_tokens))}
            assert seen <= places, "it lacks what its next token sees"
            for i, block in row.items():
                full = (i + 1) * group.block_tokens <= request.computed_tokens
                assert full or blocks[block].name == 0 or r in running(simulation, e), "named before it was filled"
                held[block] += 1
    assert {b: int(n) for b, n in enumerate(blocks["references"]) if n} == dict(held)
    free, block = [], int(engine.cache.first_free)
    while block >= 0:
        free.append(block)
        block = int(blocks[block].after)
    assert len(free) == engine.free_blocks and sorted([*free, *held]) == list(range(engine.total_blocks))
    named = [bool(blocks[block].name) for block in free]
    assert named == sorted(named), "what holds nothing is taken first"
    assert engine.cache.considered == -1 and engine.cache.shared_blocks == 0


def rows_of(cells: np.ndarray, groups: list[KvGroup]) -> list[dict[int, int]]:
    """The blocks of a request by place, in each group. cells: its part of the tables (grouped_prefixes.py)."""
    full_row, window_row, _, tokens, first_held = cells[:5].tolist()
    rows, start = [], NUMBERS
    for group in groups:
        full = not (group.window or group.state)
        places = range(0 if full else first_held, -(-tokens // group.block_tokens))
        rows.append({i: int(cells[start + i]) for i in places if cells[start + i] != NONE})
        start += full_row if full else window_row
    return rows


def running(simulation: Simulation, e: int) -> set[int]:
    arrays = simulation.arrays
    return set(arrays.entries["request"][e, : arrays.engines[e].batch_length].tolist())

"""KV blocks as they are counted, of a memory of six."""

import numpy as np
import pytest

from servegym.simulator.memory.kv_memory import blocks_for, count_blocks, grow, release
from servegym.simulator.records import types as layout

pytestmark = pytest.mark.nojit

BLOCKS = 6


@pytest.fixture
def memory():
    """Requests without blocks, and an engine."""
    requests, engines = np.zeros(3, layout.REQUEST), np.zeros(1, layout.ENGINE)
    engines["total_blocks"] = engines["free_blocks"] = BLOCKS
    return requests, engines[0]


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "blocks"), [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (5, 1, 5)]
)
def test_blocks_for(tokens, block_tokens, blocks):
    assert blocks_for(tokens, block_tokens) == blocks


def test_blocks_are_taken_and_given_back(memory):
    requests, engine = memory
    a, b, _ = requests
    grow(a, engine, 2)
    grow(b, engine, 1)
    grow(a, engine, 1)
    assert (a.blocks, b.blocks, engine.running, engine.free_blocks, engine.totals.peak_blocks) == (3, 1, 2, 2, 4)
    release(a, engine)
    assert (a.blocks, b.blocks, engine.running, engine.free_blocks) == (0, 1, 1, 5)
    release(b, engine)
    assert (engine.running, engine.free_blocks, engine.totals.peak_blocks) == (0, BLOCKS, 4)


def test_growing_by_nothing_and_releasing_nothing_change_nothing(memory):
    requests, engine = memory
    before = requests.tobytes(), engine.tobytes()
    grow(requests[0], engine, 0)
    release(requests[0], engine)
    assert (requests.tobytes(), engine.tobytes()) == before


def test_blocks_are_integrated_over_time(memory):
    requests, engine = memory
    grow(requests[0], engine, 2)
    count_blocks(engine, 3.0)  # 2 blocks for 3 s
    grow(requests[1], engine, 3)
    count_blocks(engine, 4.0)  # 5 blocks for 1 s
    count_blocks(engine, 4.0)
    assert engine.totals.block_seconds == 11.0 and engine.totals.blocks_counted_s == 4.0

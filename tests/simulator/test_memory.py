"""KV blocks: chains, references, and what is free, on a memory of six blocks."""

import numpy as np
import pytest

from servegym.simulator import types as layout
from servegym.simulator.memory import blocks_for, count_blocks, empty_blocks, grow, release

pytestmark = pytest.mark.nojit

BLOCKS = 6


@pytest.fixture
def memory():
    """Requests without blocks, an engine, and its blocks."""
    requests, engines = np.zeros(3, layout.REQUEST), np.zeros(1, layout.ENGINE)
    requests["last_block"] = -1
    engines["total_blocks"] = engines["free_blocks"] = BLOCKS
    return requests, engines[0], empty_blocks([BLOCKS])[0]


def free(engine, blocks):
    return blocks["free"][: engine.free_blocks].tolist()


def chain(request, blocks):
    found, block = [], request.last_block
    while block >= 0:
        found.append(int(block))
        block = blocks[block].previous
    return found[::-1]


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "blocks"), [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (5, 1, 5)]
)
def test_blocks_for(tokens, block_tokens, blocks):
    assert blocks_for(tokens, block_tokens) == blocks


def test_a_chain_grows_and_is_released(memory):
    requests, engine, blocks = memory
    a, b, _ = requests
    grow(a, engine, blocks, 2)
    grow(b, engine, blocks, 1)
    grow(a, engine, blocks, 1)
    assert chain(a, blocks) == [0, 1, 3] and chain(b, blocks) == [2]
    assert (a.blocks, b.blocks, engine.holders, engine.free_blocks, engine.totals.peak_blocks) == (3, 1, 2, 2, 4)
    assert blocks["references"].tolist() == [1, 1, 1, 1, 0, 0]
    release(a, engine, blocks)
    assert (a.blocks, a.last_block, engine.holders) == (0, -1, 1)
    assert sorted(free(engine, blocks)) == [0, 1, 3, 4, 5]
    release(b, engine, blocks)
    assert sorted(free(engine, blocks)) == list(range(BLOCKS))
    assert (engine.holders, engine.totals.peak_blocks) == (0, 4) and not blocks["references"].any()


def test_growing_by_nothing_and_releasing_nothing_change_nothing(memory):
    requests, engine, blocks = memory
    before = requests.tobytes(), engine.tobytes(), blocks.tobytes()
    grow(requests[0], engine, blocks, 0)
    release(requests[0], engine, blocks)
    assert (requests.tobytes(), engine.tobytes(), blocks.tobytes()) == before


def shared_prefix(memory, after_a: int, after_b: int):
    """Requests a and b share the blocks 0 and 1, by references made by hand; then each grows on its own."""
    requests, engine, blocks = memory
    a, b, _ = requests
    grow(a, engine, blocks, 2)
    b.last_block, b.blocks = a.last_block, a.blocks
    blocks[b.last_block].references += 1
    engine.holders += 1
    grow(a, engine, blocks, after_a)
    grow(b, engine, blocks, after_b)
    return a, b, engine, blocks


def test_chains_that_meet(memory):
    a, b, engine, blocks = shared_prefix(memory, 1, 2)
    assert chain(a, blocks) == [0, 1, 2] and chain(b, blocks) == [0, 1, 3, 4]
    # Block 1 is followed by 2 and 3; every other block by one block, or it is the end of one request.
    assert blocks["references"].tolist() == [1, 2, 1, 1, 1, 0]
    release(a, engine, blocks)
    # What a had alone is free; what b needs stays, with one reference less where they met.
    assert sorted(free(engine, blocks)) == [2, 5] and chain(b, blocks) == [0, 1, 3, 4]
    assert blocks["references"].tolist() == [1, 1, 0, 1, 1, 0]
    release(b, engine, blocks)
    assert sorted(free(engine, blocks)) == list(range(BLOCKS)) and not blocks["references"].any()
    assert engine.holders == 0


def test_two_requests_that_end_at_one_block(memory):
    a, b, engine, blocks = shared_prefix(memory, 0, 0)
    assert blocks["references"].tolist() == [1, 2, 0, 0, 0, 0]
    release(b, engine, blocks)
    assert sorted(free(engine, blocks)) == [2, 3, 4, 5] and chain(a, blocks) == [0, 1]
    release(a, engine, blocks)
    assert sorted(free(engine, blocks)) == list(range(BLOCKS))


def test_one_ends_where_the_other_goes_on(memory):
    a, b, engine, blocks = shared_prefix(memory, 2, 0)
    assert blocks["references"].tolist() == [1, 2, 1, 1, 0, 0]  # block 1: the end of b, and followed by 2
    release(a, engine, blocks)
    assert sorted(free(engine, blocks)) == [2, 3, 4, 5] and chain(b, blocks) == [0, 1]


def test_blocks_are_integrated_over_time(memory):
    requests, engine, blocks = memory
    grow(requests[0], engine, blocks, 2)
    count_blocks(engine, 3.0)  # 2 blocks for 3 s
    grow(requests[1], engine, blocks, 3)
    count_blocks(engine, 4.0)  # 5 blocks for 1 s
    count_blocks(engine, 4.0)
    assert engine.totals.block_seconds == 11.0 and engine.totals.blocks_counted_s == 4.0

"""KV memory in blocks by kinds of layers, against the examples of vLLM's own rule (kv_cache_utils.py)."""

import pytest

from servegym.errors import ProfileError
from servegym.latency_models.model_configs.kv_groups import Kept, grouped

FULL, WINDOW = Kept(100), Kept(100, window=64)


def sizes(kept, available=10**9):
    return [(one.kept, one.layers) for one in grouped(kept, available).groups]


def test_layers_of_one_kind_are_one_group():
    groups = grouped([FULL] * 8, 16 * 800 * 10)
    assert (len(groups.groups), groups.blocks, groups.page_bytes) == (1, 10, 16 * 800)
    assert groups.tokens(160, 8192) == 160


def test_groups_have_as_many_layers_as_the_rarest_kind():
    """vLLM: 10 full and 20 sliding layers are three groups of 10."""
    assert sizes([FULL] * 10 + [WINDOW] * 20) == [(FULL, 10), (WINDOW, 10), (WINDOW, 10)]
    assert sizes([FULL] * 2 + [WINDOW] * 3) == [(FULL, 2), (WINDOW, 2), (WINDOW, 1)]


def test_nearly_as_many_layers_are_filled_up():
    """vLLM: 12 sliding and 13 full layers are two groups, not three."""
    assert sizes([WINDOW] * 12 + [FULL] * 13) == [(WINDOW, 12), (FULL, 13)]
    assert grouped([WINDOW] * 12 + [FULL] * 13, 16 * 100 * 13 * 7).blocks == 7


def test_a_window_keeps_its_tokens_and_a_chunk():
    (group,) = grouped([WINDOW], 16 * 100).groups
    assert group.blocks(1000) == 5  # 64 tokens, beginning inside of a block
    assert group.blocks(1000, chunk=512) == 37  # 63 + 512 tokens
    assert group.blocks(48) == 3
    local = grouped([Kept(100, window=64, local=True)], 1600).groups[0]
    assert local.blocks(1000) == 5 and local.blocks(1000, chunk=512) == 36


def test_tokens_that_fit():
    """Half of the layers keep a window: long requests need little more than half of the blocks."""
    groups = grouped([FULL, WINDOW], 16 * 100 * 1000)
    assert groups.blocks == 1000
    assert groups.request_blocks(1600) == 100 + 5
    assert groups.tokens(1600, 1) == int(1000 / 105 * 1600)
    assert groups.tokens(1600, 513) == int((1000 - 32) / 105 * 1600)


def test_states_take_a_block_and_blocks_are_as_long_as_a_state():
    state = Kept(state_bytes=5000)
    groups = grouped([state] * 3 + [FULL], 6400 * 100)
    assert groups.page_bytes == 64 * 100  # 4 blocks of 16 tokens hold 5,000 bytes
    assert [group.block_tokens for group in groups.groups] == [64] * 4
    assert groups.request_blocks(640) == 3 + 10
    assert groups.blocks == 100


def test_states_alone_take_a_block_a_request_and_one_stays_empty():
    groups = grouped([Kept(state_bytes=5000)] * 3, 15000 * 100)
    assert [(group.layers, group.block_tokens) for group in groups.groups] == [(3, 16)]
    assert (groups.page_bytes, groups.blocks) == (5000, 99)  # one is vLLM's null block
    assert groups.request_blocks(10**6) == 1 and groups.tokens(1000, 8192) == 99_000


def test_pages_of_different_sizes():
    both = grouped([FULL, Kept(50, window=64)], 10**6)
    assert [group.block_tokens for group in both.groups] == [16, 32]
    with pytest.raises(ProfileError, match="keep 100 and 250 bytes"):
        grouped([FULL, Kept(250, window=64)], 10**6)
    assert len(grouped([FULL, Kept(250)], 10**6).groups) == 1  # of one kind, in one table
    with pytest.raises(ProfileError, match="no layer keeps anything"):
        grouped([], 10**6)

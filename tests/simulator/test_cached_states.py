"""Prefix caching with states of fixed size, by hand: where chunks end, which states are kept, what a request holds."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.memory.kv_groups import KvCacheGroup, blocks_held, blocks_needed, kinds_of, tokens_held
from servegym.simulator.runs.results import Result
from tests.simulator.test_grouped_prefixes import A_SECOND, CHECKPOINTED, FULL, NAMES, STATE, served
from tests.timelines import iterations

pytestmark = pytest.mark.nojit


def batches(result: Result) -> list[list[tuple[int, int]]]:
    return [iteration.batch for iteration in iterations(result)]


def test_a_prompt_stops_at_its_last_whole_block_and_the_same_prompt_goes_on_there() -> None:
    # Of 30 tokens 28 could be found again: the chunk stops there, the state is kept, and the rest is a chunk.
    result = served([(30, 1), (30, 1)], [NAMES[:7]] * 2, FULL, STATE, STATE)
    assert batches(result) == [[(0, 28)], [(0, 2)], [(1, 2)]]
    assert result.requests["cached_tokens"].tolist() == [0, 28]


def test_one_token_is_computed_anew_though_a_prompt_ends_with_a_block() -> None:
    result = served([(32, 1), (32, 1)], [NAMES[:8]] * 2, FULL, STATE)
    assert batches(result) == [[(0, 28)], [(0, 4)], [(1, 4)]]


def test_a_request_holds_the_state_it_goes_on_from_and_the_one_it_writes() -> None:
    result = served([(30, 4), (30, 1)], [NAMES[:7]] * 2, FULL, STATE, STATE)
    used = [iteration.used_blocks for iteration in iterations(result)]
    # Two in the first chunk of a block, that of the prompt's last tokens and that of the third decode; else one.
    assert used == [7 + 2, 8 + 4, 8 + 2, 8 + 2, 9 + 4, 8 + 4]
    assert batches(result)[-1] == [(1, 2)]


def test_where_beginnings_part_a_state_is_kept_when_a_second_request_has_come_there() -> None:
    rows, other, third = [(32, 1)] * 3, [*NAMES[:5], 50, 51, 52], [*NAMES[:5], 60, 61, 62]
    result = served(rows, [NAMES[:8], other, third], FULL, STATE)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 20]
    assert batches(result)[2:] == [[(1, 20)], [(1, 8)], [(1, 4)], [(2, 8)], [(2, 4)]]


def test_chunks_end_with_blocks_where_a_budget_ends_within_one() -> None:
    result = served([(30, 1)], [NAMES[:7]], FULL, STATE, max_num_batched_tokens=10)
    assert [chunk for batch in batches(result) for _, chunk in batch] == [8, 8, 8, 4, 2]
    # A block for which no batch has room is computed in pieces, the last of which ends with it.
    small = served([(30, 1)], [NAMES[:7]], FULL, STATE, max_num_batched_tokens=3)
    assert [chunk for batch in batches(small) for _, chunk in batch] == [3, 1] * 7 + [2]


def test_a_newcomer_for_whose_block_there_is_no_room_ends_admissions() -> None:
    # 14 tokens a batch: 12 of the first, so 2 are left, in which no block of the second ends; the third waits with it,
    # though its prompt would fit.
    rows, at_once = [(16, 5), (8, 1), (2, 1)], [0.0, 0.0, 0.0]
    result = served(rows, [[], [], []], FULL, STATE, max_num_batched_tokens=14, arrival_s=at_once)
    assert batches(result)[:2] == [[(0, 12)], [(0, 4), (1, 4), (2, 2)]]


def test_a_request_waits_for_a_state_that_the_batch_itself_computes() -> None:
    # All arrive at once; the first two begin alike. In the first batch the second finds a full block and a state that
    # are computed in it: it is admitted to the next, and the third does not pass it.
    rows, at_once = [(8, 1), (8, 1), (2, 1)], [0.0, 0.0, 0.0]
    result = served(rows, [NAMES[:2], NAMES[:2], []], FULL, STATE, arrival_s=at_once)
    assert batches(result) == [[(0, 4)], [(0, 4), (1, 4), (2, 2)]]
    assert result.requests["cached_tokens"].tolist() == [0, 4, 0]


def test_states_without_names_are_taken_first_and_an_overwritten_one_is_no_hit() -> None:
    rows, chunks = [(32, 1), (60, 1), (32, 1)], [NAMES[:8], [40 + i for i in range(15)], NAMES[:8]]
    assert served(rows, chunks, FULL, STATE, blocks=60).requests["cached_tokens"].tolist() == [0, 0, 28]
    assert served(rows, chunks, FULL, STATE, blocks=17).requests["cached_tokens"].tolist()[2] < 28


def test_a_checkpoint_is_written_inside_the_last_chunk_of_a_prompt() -> None:
    # Of 30 tokens the chunk also writes the state after 28, in a block of its own: 8 + 2 x 2. It stays for the decode.
    result = served([(30, 2), (30, 1)], [NAMES[:7]] * 2, FULL, CHECKPOINTED, CHECKPOINTED)
    assert batches(result) == [[(0, 30)], [(0, 1)], [(1, 2)]]
    assert result.requests["cached_tokens"].tolist() == [0, 28]
    assert [iteration.used_blocks for iteration in iterations(result)] == [8 + 4, 8 + 2, 8 + 4]


def test_a_chunk_writes_a_checkpoint_if_it_begins_with_a_block_that_it_goes_beyond() -> None:
    # 3 tokens a batch: the chunks of a block begin within it. 28 tokens: the last chunk begins with the last block.
    for tokens, chunks in ((3, [3, 1] * 7 + [2]), (8, [8, 8, 8, 6]), (28, [28, 2])):
        result = served([(30, 1)], [NAMES[:7]], FULL, CHECKPOINTED, max_num_batched_tokens=tokens)
        assert [chunk for batch in batches(result) for _, chunk in batch] == chunks


def test_a_checkpoint_and_the_place_where_beginnings_part() -> None:
    rows, other, third = [(32, 1)] * 3, [*NAMES[:5], 50, 51, 52], [*NAMES[:5], 60, 61, 62]
    result = served(rows, [NAMES[:8], other, third], FULL, CHECKPOINTED)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 20]
    assert batches(result) == [[(0, 32)], [(1, 20)], [(1, 12)], [(2, 12)]]


ALONE = KvCacheGroup(4, state=True)  # of a model that has no attention at all


def test_states_alone_take_a_block_a_request_whatever_its_length() -> None:
    # Two blocks: two requests run at once, and the third waits until one of them is done.
    result = served([(30, 2), (500, 3), (8, 1)], [[]] * 3, ALONE, blocks=2, arrival_s=[0.0] * 3, prefix_caching=False)
    assert batches(result) == [[(0, 30), (1, 500)], [(0, 1), (1, 1)], [(1, 1), (2, 8)]]
    assert [iteration.used_blocks for iteration in iterations(result)] == [2, 2, 2]
    pool = Deployment(A_SECOND, A_SECOND, 2, kv_groups=(ALONE,))
    assert pool.request_tokens() > 2**30 and pool.capacity_tokens == 2**31 - 1
    assert [blocks_needed([ALONE], tokens, caching=True) for tokens in (1, 4, 5, 40)] == [1, 1, 2, 2]


def test_states_alone_are_cached_in_blocks_of_their_own() -> None:
    # The third shares 20 tokens with both, but no state was kept there: without full attention nothing shows that
    # beginnings part, so each prompt keeps the state of its last whole block alone.
    rows, other, third = [(32, 1)] * 4, [*NAMES[:5], 50, 51, 52], [*NAMES[:5], 60, 61, 62]
    result = served(rows, [NAMES[:8], NAMES[:8], other, third], ALONE, prefix_caching=True)
    assert result.requests["cached_tokens"].tolist() == [0, 28, 0, 0]
    assert batches(result)[:3] == [[(0, 28)], [(0, 4)], [(1, 4)]]
    checkpointed = dataclasses.replace(ALONE, checkpoints=True)
    inside = served(rows[:2], [NAMES[:8]] * 2, checkpointed, prefix_caching=True)
    assert batches(inside) == [[(0, 32)], [(1, 4)]]
    assert [iteration.used_blocks for iteration in iterations(inside)] == [2, 2]


def test_states_alone_are_cached_only_if_asked_for() -> None:
    """As in vLLM, which leaves it off for models without attention (ModelConfig.is_prefix_caching_supported)."""
    assert served([(32, 1)] * 2, [NAMES[:8]] * 2, ALONE).requests["cached_tokens"].tolist() == [0, 0]
    assert served([(32, 1)] * 2, [NAMES[:8]] * 2, FULL, STATE).requests["cached_tokens"].tolist() == [0, 28]


def test_blocks_of_cached_states() -> None:
    groups = [FULL, STATE, STATE]
    held = blocks_held(groups, np.array([0, 8, 9, 8]), np.array([20, 4, 1, 20]), caching=True)
    assert held.tolist() == [5 + 2, 3 + 4, 3 + 2, 7 + 4]
    assert blocks_held(groups, np.array([8]), np.array([20])).tolist() == [7 + 2]
    assert [blocks_needed(groups, tokens, caching=True) for tokens in (1, 4, 5, 9)] == [1 + 2, 1 + 2, 2 + 4, 3 + 4]
    assert (tokens_held(groups, 7, caching=True), tokens_held(groups, 7)) == (12, 20)
    kinds: Any = kinds_of(groups, "here", caching=True)
    assert (kinds.states, kinds.windows, kinds.window_block_tokens) == (0, 2, 4)
    assert kinds_of([KvCacheGroup(8), STATE], "here").states == 1
    needed = [blocks_needed([FULL, CHECKPOINTED], tokens, caching=True) for tokens in (4, 5, 8, 9, 40)]
    assert needed == [1 + 1, 2 + 2, 2 + 2, 3 + 3, 10 + 3]
    assert blocks_needed([FULL, CHECKPOINTED, STATE], 40, caching=True) == 10 + 2 * 2  # only if all have them

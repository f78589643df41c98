"""vLLM V1 by hand; tests/vllm_v1 compares it with recorded steps of the real scheduler."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.records.types import EVICT_FOR_RUNNING
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

FCFS, PRIORITY = scheduler("vllm-v1"), scheduler("vllm-v1:policy=priority")


def running(admitted: int, **more) -> dict:
    return state(2, 1, 2, admitted=admitted, **more)


def test_running_by_admission_then_evicted_last_one_first_then_by_arrival():
    rows = [running(5), running(4), state(2, 1, evicted=1), state(2, 1, evicted=2), state(2)]
    assert formed(FCFS, *rows).batch == [(1, 1), (0, 1), (3, 3), (2, 3), (4, 2)]
    # A running request that was evicted before, and came back, is a running one.
    assert formed(FCFS, running(3, evicted=1), running(2)).batch == [(1, 1), (0, 1)]


def test_a_running_prefill_keeps_its_place_among_decodes():
    assert formed(FCFS.with_settings(max_num_batched_tokens=4), state(9, 0, 2, admitted=1), running(2)).batch == [
        (0, 4)
    ]


def test_a_long_prefill_gets_no_more_than_the_threshold():
    rows = [state(9, 0, 2, admitted=1), running(2), state(8, arrival_s=0.25), state(3, arrival_s=0.5)]
    limited = FCFS.with_settings(max_num_batched_tokens=12, long_prefill_token_threshold=4)
    assert formed(limited, *rows, blocks=99, now_s=1.0).batch == [(0, 4), (1, 1), (2, 4), (3, 3)]
    assert formed(limited, rows[0], blocks=99, now_s=1.0).batch == [(0, 7)]  # alone
    assert formed(FCFS.with_settings(max_num_batched_tokens=12), *rows, blocks=99, now_s=1.0).batch == [
        (0, 7),
        (1, 1),
        (2, 4),
    ]


def test_priority_orders_the_waiting_only():
    rows = [running(2, priority=0), running(1, priority=9), state(2, priority=1), state(2, priority=0),
            state(1, 1, evicted=3, priority=1)]  # fmt: skip
    assert formed(PRIORITY, *rows).batch == [(1, 1), (0, 1), (3, 2), (2, 2), (4, 2)]
    # A tie of priorities goes by arrival.
    rows = [state(2, priority=1, arrival_s=0.5), state(2, priority=1, arrival_s=0.25)]
    assert formed(PRIORITY, *rows, now_s=1.0).batch == [(1, 2), (0, 2)]


def test_victims():
    rows = [running(2, priority=0, arrival_s=0.5), running(3, priority=1, arrival_s=0.25),
            running(1, priority=1, arrival_s=0.75)]  # fmt: skip
    assert ranked(FCFS, *rows, now_s=1.0).victim_ranks == [(0, 2), (0, 3), (0, 1)]
    assert ranked(PRIORITY, *rows, now_s=1.0).victim_ranks == [(0, 0.5), (1, 0.25), (1, 0.75)]
    # By admission 2, 0, 1. fcfs: 2 evicts 1, the tail, and takes one of its 2 blocks, 0 the other.
    assert formed(FCFS, *rows, blocks=6, now_s=1.0) == ([(2, 1), (0, 1)], [1], 0)
    # priority: 2 is the worst itself, with nothing taken yet. Anew: 0 and 1 take the 2 blocks; 2 finds no room.
    assert formed(PRIORITY, *rows, blocks=6, now_s=1.0) == ([(0, 1), (1, 1)], [2], 0)


def test_what_runs_may_evict():
    # A running prefill wants 4 blocks: the tail gives up 2, and 2 are free.
    rows = [state(6, 0, 2, admitted=1), running(2)]
    assert formed(FCFS, *rows, blocks=6) == ([(0, 4)], [1], 0)
    assert ranked(FCFS, *rows).limits.evict_for == EVICT_FOR_RUNNING


def test_none_is_admitted_in_an_iteration_that_preempted():
    # The tail's 9 blocks leave room for the prompt of 1, which waits all the same.
    rows = [running(1), state(8, 1, 9 - 1, admitted=2), state(1)]
    assert formed(FCFS, *rows, blocks=10) == ([(0, 1)], [1], 7)


def test_its_own_victim_with_an_empty_batch():
    rows = [running(1, priority=1), running(2, priority=0)]
    assert formed(PRIORITY, *rows, blocks=4) == ([(1, 1)], [0], 1)
    # Alone it holds all; anew, the better one that waits is admitted, and leaves no room for it.
    rows = [running(1, priority=1), state(1, priority=0)]
    assert formed(PRIORITY, *rows, blocks=2) == ([(1, 1)], [0], 1)


def test_limits():
    limits = ranked(FCFS, state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.reserve_context, limits.watermark_blocks) == (
        2048, 256, 1, 0,
    )  # fmt: skip
    set_ = FCFS.with_settings(max_num_batched_tokens=7, max_num_seqs=2, reserve_full=0, watermark=0.25)
    limits = ranked(set_, state(3), blocks=99).limits
    # A quarter of 99 blocks and the null block.
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.reserve_context, limits.watermark_blocks) == (
        7, 2, 0, 25,
    )  # fmt: skip
    assert ranked(set_, state(3), blocks=98).limits.watermark_blocks == 24  # 24.75
    assert formed(set_, decode(admitted=1), state(4), state(4)).batch == [(0, 1), (1, 4)]


def test_reserve_full_looks_at_the_whole_context():
    # 6 tokens in a batch of 4: 5 free blocks are too few for 6, and enough for the 3 that are left of the budget.
    rows = [decode(admitted=1), state(6)]
    assert formed(FCFS.with_settings(max_num_batched_tokens=4), *rows, blocks=9).batch == [(0, 1)]
    assert formed(FCFS.with_settings(max_num_batched_tokens=4, reserve_full=0), *rows, blocks=9).batch == [
        (0, 1),
        (1, 3),
    ]

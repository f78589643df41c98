"""Llumnix's reserve by hand: by priority, then arrival; lower priorities are admitted only beside a free reserve."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.records.types import MISFIT_STOP, PHASE_FIRST_DECIDES
from tests.simulator.forming import decode, formed, ranked, state, waiting_for_a_batch

pytestmark = pytest.mark.nojit

HIGH, LOW = 0, 1
DECODES = 2**40


def llumnix(**settings):
    return scheduler("llumnix-reserve").with_settings(**settings)


def batch(*rows: dict, blocks: int = 1000, **settings) -> list[tuple[int, int]]:
    return formed(llumnix(**settings), *rows, blocks=blocks).batch


def test_by_priority_then_arrival_prefills_before_decodes():
    rows = [
        decode(priority=HIGH, arrival_s=1.0),
        state(3, priority=LOW, arrival_s=0.0),
        state(3, priority=HIGH, arrival_s=2.0),
        state(3, priority=HIGH, arrival_s=1.0),
        decode(priority=LOW, arrival_s=0.5),
    ]
    rank = ranked(llumnix(), *rows, now_s=2.0)
    assert rank.ranks == [(DECODES, 1), (LOW, 0), (HIGH, 2), (HIGH, 1), (DECODES + 1, 0.5)]
    assert rank.victim_ranks == rank.ranks
    assert formed(llumnix(), *rows, now_s=2.0).batch == [(3, 3), (2, 3), (1, 3)]  # prefills only


def test_ties_go_by_place():
    assert batch(state(3, priority=LOW), state(2, priority=LOW), state(4)) == [(2, 4), (0, 3), (1, 2)]


def test_low_priority_leaves_the_reserve():
    # 20 blocks, 2 of them reserved: a decode holds 3, 17 are free.
    low, high = state(15, priority=LOW), state(15, priority=HIGH)
    assert batch(decode(), low, blocks=20) == [(1, 15)]
    assert batch(decode(), state(16, priority=LOW), blocks=20) == [(0, 1)]  # 16 + 2 > 17: decodes run instead
    assert batch(decode(), state(16, priority=HIGH), blocks=20) == [(1, 16)]
    assert batch(decode(), state(16, priority=LOW), blocks=20, reserve=0) == [(1, 16)]
    assert batch(decode(), high, low, blocks=20) == [(1, 15)]


def test_the_reserve_is_a_whole_number_of_blocks():
    # floor(0.1 x 19) = 1.
    assert batch(decode(), state(15, priority=LOW), blocks=19) == [(1, 15)]
    assert batch(decode(), state(16, priority=LOW), blocks=19) == [(0, 1)]


def test_alone_it_needs_no_reserve():
    assert batch(state(20, priority=LOW), blocks=20, reserve=1) == [(0, 20)]


def test_every_priority_below_the_highest_leaves_the_reserve():
    simulation = waiting_for_a_batch(llumnix(reserve=0.25), *[state(2, priority=p) for p in (-1, 0, 1, 7)], blocks=10)
    simulation.step()
    assert simulation.arrays.ranks["headroom_blocks"][:4].tolist() == [0, 0, 2, 2]


def test_a_low_priority_decode_grows_into_the_reserve():
    # All but one block are in use, half of them reserved: the decodes of low priority still get it, in order.
    rows = [decode(priority=LOW, arrival_s=1.0), decode(priority=HIGH, arrival_s=2.0)]
    assert formed(llumnix(reserve=0.5), *rows, blocks=8, now_s=2.0) == ([(1, 1), (0, 1)], [], 0)
    # One block for two: the decode of low priority, which would run last, gives up its memory.
    assert formed(llumnix(reserve=0.5), *rows, blocks=7, now_s=2.0) == ([(1, 1)], [0], 3)


def test_limits():
    limits = ranked(llumnix(max_num_batched_tokens=33, max_num_seqs=5), state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.whole_prompts) == (33, 5, 1)
    assert (limits.phase, limits.misfit) == (PHASE_FIRST_DECIDES, MISFIT_STOP)
    assert batch(state(30), state(4), max_num_batched_tokens=33) == [(0, 30)]  # 34 > 33 ends filling

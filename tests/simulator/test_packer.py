"""Forming a batch, rule by rule (docs/simulation.md), on queues small enough to work out on paper.

Unless a case says otherwise a batch takes 1 s + 1 s a token and a KV block holds one token (see forming.py).
"""

import numpy as np
import pytest

from servegym.simulator.records.types import (
    EVICT_FOR_ALL,
    EVICT_FOR_RUNNING,
    EVICTED,
    MISFIT_STOP,
    PHASE_FIRST_DECIDES,
    TIMELINE,
)
from tests.simulator.forming import by_place, decode, formed, linear, state, waiting_for_a_batch

pytestmark = pytest.mark.nojit


# 1 full


def test_filling_ends_when_a_budget_is_used_up():
    assert formed(by_place(sequence_budget=2), state(3), state(4), state(5)).batch == [(0, 3), (1, 4)]
    assert formed(by_place(max_num_batched_tokens=7), state(3), state(4), state(5)).batch == [(0, 3), (1, 4)]
    assert formed(by_place(max_num_batched_tokens=8), state(3), state(4), state(5)).batch == [(0, 3), (1, 4), (2, 1)]
    assert formed(by_place(chunk_tokens=2), state(3), state(1), state(5)).batch == [(0, 2), (1, 1), (2, 2)]


# 2 phase


def test_the_first_taken_decides_the_phase():
    one_phase = by_place(phase=PHASE_FIRST_DECIDES)
    assert formed(one_phase, decode(), state(4), decode()).batch == [(0, 1), (2, 1)]
    assert formed(one_phase, state(4), decode(), state(5)).batch == [(0, 4), (2, 5)]
    assert formed(by_place(), state(4), decode()).batch == [(0, 4), (1, 1)]
    # Two tokens out and no memory: it prefills its whole context of 5.
    assert formed(one_phase, state(3, 2), decode()).batch == [(0, 5)]
    # Two tokens out and one token left to compute besides the last: a prefill too.
    assert formed(one_phase, state(3, 2, 3), decode()).batch == [(0, 2)]
    # The prompt finds no room (10 > 9 - 3 free): the first taken is the decode.
    assert formed(one_phase, state(10), decode(), blocks=9).batch == [(1, 1)]


# 3 chunk


def test_whole_prompts():
    # The first may exceed the budget of 8; none joins it: the batch is full.
    whole = by_place(whole_prompts=1, max_num_batched_tokens=8)
    assert formed(whole, state(9), state(3)).batch == [(0, 9)]
    # 5 + 4 exceeds it: passed over, the 3 join; where what does not fit ends filling they do not.
    assert formed(whole, state(5), state(4), state(3)).batch == [(0, 5), (2, 3)]
    assert formed(whole.with_settings(misfit=MISFIT_STOP), state(5), state(4), state(3)).batch == [(0, 5)]
    # A prompt cut by time is not whole: 1 + 5 <= 8 s, 1 + 5 + 4 > 8 s, 1 + 5 + 2 <= 8 s.
    cut = by_place(whole_prompts=1, time_budget_s=8)
    assert formed(cut, state(5), state(4), state(2)).batch == [(0, 5), (2, 2)]


def test_decodes_may_need_no_time():
    # 1 + 4 s of 5 are taken: the decodes go on, the prefill after them gets nothing.
    queue = state(4), decode(), decode(), state(5)
    assert formed(by_place(time_budget_s=5, untimed_decodes=1), *queue).batch == [(0, 4), (1, 1), (2, 1)]
    # Their time counts all the same: 1 + 2 s of decodes leave 2 s.
    queue = decode(), decode(), state(5)
    assert formed(by_place(time_budget_s=5, untimed_decodes=1), *queue).batch == [(0, 1), (1, 1), (2, 2)]
    # No time at all: only decodes.
    assert formed(by_place(time_budget_s=0, untimed_decodes=1), state(5), decode()).batch == [(1, 1)]


def test_so_many_prefill_tokens_need_no_time():
    # 1 + 1 + 2 s are within 4 s; 3 prefill tokens are taken in any case, over all requests.
    settings = {"untimed_decodes": 1, "untimed_prefill_tokens": 3}
    assert formed(by_place(time_budget_s=4, **settings), decode(), state(9)).batch == [(0, 1), (1, 3)]
    assert formed(by_place(time_budget_s=0, **settings), state(2), state(9), state(1)).batch == [(0, 2), (1, 1)]
    # More than these fit: 1 + 6 s.
    assert formed(by_place(time_budget_s=7, **settings), state(9)).batch == [(0, 6)]
    # It wants less, or is cut by the token budget.
    assert formed(by_place(time_budget_s=0, **settings), state(1), decode()).batch == [(0, 1), (1, 1)]
    assert formed(by_place(time_budget_s=0, max_num_batched_tokens=2, **settings), state(9)).batch == [(0, 2)]
    # A chunk below the smallest still does not fit.
    small = by_place(time_budget_s=0, smallest_chunk_tokens=4, **settings)
    assert formed(small, state(9), decode()).batch == [(1, 1)]


def test_newcomers_may_evict_those_that_would_give_up_memory_before_them():
    # 8 blocks: a decode of 3 + 1 and a prefill with 4 of its 9 tokens computed. Nothing is free for a newcomer of 4.
    everyone = by_place(by_priority=True, evict_for=EVICT_FOR_ALL, max_num_batched_tokens=100)
    running = decode(priority=0), state(9, 0, 4, priority=2)
    newcomer = state(4, priority=1)
    # It ranks last by place, but gives up memory after the prefill, which has no room to go on by itself: 5 > 0.
    got = formed(everyone, running[0], newcomer, running[1], blocks=8)
    assert got == ([(0, 1), (1, 4)], [2], 0)
    # Admission stays open for what comes after.
    got = formed(everyone, running[0], newcomer, state(1, priority=1), running[1], blocks=9)
    assert got == ([(0, 1), (1, 4), (2, 1)], [3], 0)
    # Those that would give up memory before it hold too little: none is evicted, and admission closes.
    got = formed(everyone, running[0], state(5, priority=1), running[1], state(1), blocks=8)
    assert got == ([(0, 1)], [2], 4), "evicted by itself (rule 5), when it found no room to go on"
    # Of equal priority the later place gives up its memory first.
    same = state(4, priority=2)
    assert formed(everyone, running[0], same, running[1], blocks=8).batch == [(0, 1), (1, 4)]
    assert formed(everyone, same, decode(), state(9, 0, 4, priority=1), blocks=8).batch == [(1, 1)]
    # Beside others the watermark is left free too.
    assert formed(everyone, running[0], newcomer, running[1], blocks=8, watermark_blocks=1).batch == [(0, 1)]
    # The request that is already in the batch leaves it, and its 5 tokens return to the budget of 6.
    six = by_place(by_priority=True, evict_for=EVICT_FOR_ALL, max_num_batched_tokens=6, reserve_context=0)
    queue = state(9, 0, 4, priority=2), state(6, priority=1), state(7, priority=1)
    assert formed(six, *queue, blocks=9) == ([(1, 1), (2, 5)], [0], 3)


def test_headroom_is_left_free_beside_others():
    # 3 of 10 blocks are held; request 1 of low priority leaves 4 more free: 7 - 4 = 3 < 4 tokens.
    headroom = by_place(headroom=4)
    assert formed(headroom, decode(), state(4, priority=1), blocks=11).batch == [(0, 1)]
    assert formed(headroom, decode(), state(3, priority=1), blocks=11).batch == [(0, 1), (1, 3)]
    # Not for high priority, and not when nobody else holds memory.
    assert formed(headroom, decode(), state(4), blocks=11).batch == [(0, 1), (1, 4)]
    assert formed(headroom, state(11, priority=1), blocks=11).batch == [(0, 11)]


def test_time_budget():
    # 1 + 4 = 5 s, then 3 of 6 up to 8 s, then nothing for a decode.
    assert formed(by_place(time_budget_s=8.5), state(4), state(6), decode()).batch == [(0, 4), (1, 3)]
    # The budget itself is within it: 1 + 4 + 3 + 1 = 9 s.
    assert formed(by_place(time_budget_s=9), state(4), state(3), decode()).batch == [(0, 4), (1, 3), (2, 1)]


def test_smallest_chunk():
    # At least 4 in a chunk cut by time: 3 of 6 are too few, a prompt of 3 is not cut.
    few = by_place(time_budget_s=8.5, smallest_chunk_tokens=4)
    assert formed(few, state(4), state(6), state(3)).batch == [(0, 4), (2, 3)]
    assert formed(few.with_settings(misfit=MISFIT_STOP), state(4), state(6), state(3)).batch == [(0, 4)]
    # Exactly 4 are enough: 1 + 3 + 4 = 8 s.
    assert formed(few, state(3), state(6)).batch == [(0, 3), (1, 4)]
    # Cut by the token budget a chunk may be smaller.
    few = by_place(max_num_batched_tokens=6, smallest_chunk_tokens=4)
    assert formed(few, state(4), state(6)).batch == [(0, 4), (1, 2)]


def test_a_batch_ends_at_a_step_where_a_token_costs_least():
    # 9 tokens fit 10.5 s. A token costs 9 s / 8 at the step, and 13 s / 9 past it, as if the batch reached 12.
    stepped = by_place(time_budget_s=10.5, step_tokens=4)
    assert formed(stepped, state(20)).batch == [(0, 8)]
    assert formed(stepped, state(9)).batch == [(0, 8)], "a prompt is not finished for it"
    # Then the batch is full: a decode of 1 s has to wait, and so has a prefill that finds the step reached.
    assert formed(stepped, state(20), decode()).batch == [(0, 8)]
    assert formed(stepped, state(8), state(5), decode()).batch == [(0, 8)]
    assert formed(stepped, decode(), state(20)).batch == [(0, 1), (1, 7)]
    # 12 fit 13 s: what passes the step at 8 can go on to 12, and ends there.
    enough = by_place(time_budget_s=13.5, step_tokens=4)
    assert formed(enough, state(9)).batch == [(0, 9)]
    assert formed(enough, state(9), state(9)).batch == [(0, 9), (1, 3)]
    # 11 fit 20.5 s, the constant part being 9 s: 17 s / 8 is more than 21 s / 11.
    assert formed(by_place(time_budget_s=20.5, step_tokens=4), state(20), model=linear(c_p=1, t_c=9)).batch == [(0, 11)]
    # No step is reached.
    assert formed(by_place(time_budget_s=4.5, step_tokens=4), state(20)).batch == [(0, 3)]
    # Whole prompts are not cut, nor is what needs no time.
    assert formed(stepped.with_settings(whole_prompts=1), state(9)).batch == [(0, 9)]
    assert formed(stepped.with_settings(untimed_prefill_tokens=9), state(20)).batch == [(0, 9)]
    # Cut there below the smallest chunk it does not fit; the next one gets what is left up to the step.
    few = by_place(time_budget_s=11.5, step_tokens=4, smallest_chunk_tokens=4)
    assert formed(few, state(6), state(9), state(3)).batch == [(0, 6), (2, 2)]


def test_what_no_longer_fits_in_time_is_passed_over_by_phase():
    # After 1 + 4 s no prefill token fits 5.5 s, a decode of 0.5 s does; after it nothing does.
    model = linear(c_p=1, b_d=0.5, t_c=1)
    queue = state(4), state(2), decode(), state(1), decode()
    assert formed(by_place(time_budget_s=5.5), *queue, model=model).batch == [(0, 4), (2, 1)]
    # And the other way round: after a decode, 1 + 2 s, another does not fit 4.5 s, a prefill token does.
    model = linear(c_p=1, b_d=2, t_c=1)
    assert formed(by_place(time_budget_s=4.5), decode(), decode(), state(9), model=model).batch == [(0, 1), (2, 1)]


# 4 admission


def test_admission_needs_room_for_the_context_and_the_watermark():
    # 100 blocks, watermark 10. Alone, 100 tokens fit; beside a running request of 20, up to 70 do.
    memory = {"blocks": 100, "watermark_blocks": 10}
    assert formed(by_place(), state(100), **memory).batch == [(0, 100)]
    assert formed(by_place(), state(20), state(70), **memory).batch == [(0, 20), (1, 70)]
    assert formed(by_place(), state(20), state(71), **memory).batch == [(0, 20)]
    # A chunk of 30 would have had room, but the context is reserved (and only the chunk is taken).
    assert formed(by_place(chunk_tokens=30), state(20), state(71), **memory) == ([(0, 20)], [], 80)
    chunks = by_place(chunk_tokens=30, reserve_context=0)
    assert formed(chunks, state(20), state(71), **memory) == ([(0, 20), (1, 30)], [], 50)
    # The context counts the tokens already out: 65 + 5 fit, 66 + 5 do not.
    assert formed(by_place(), state(20), state(65, 5), **memory).batch == [(0, 20), (1, 70)]
    assert formed(by_place(), state(20), state(66, 5), **memory).batch == [(0, 20)]


def test_blocks_are_rounded_up():
    # Blocks of 4: 5 tokens take 2, a running request of 4 has 1 and needs 1 more for its 5th.
    assert formed(by_place(), state(5), state(4), blocks=3, block_tokens=4) == ([(0, 5), (1, 4)], [], 0)
    assert formed(by_place(), state(5), state(5), blocks=3, block_tokens=4) == ([(0, 5)], [], 1)
    assert formed(by_place(), state(4, 1, 4), blocks=2, block_tokens=4) == ([(0, 1)], [], 0)
    assert formed(by_place(), state(3, 1, 3), blocks=1, block_tokens=4) == ([(0, 1)], [], 0)


# 5 eviction


def test_a_decode_evicts_and_a_prefill_is_skipped():
    # Nothing is free. The prefill is skipped; the decode takes a block of the one that ranks last.
    queue = state(9, 0, 3), decode(), state(2, 1, 2)
    assert formed(by_place(), *queue, blocks=8) == ([(1, 1)], [2], 1)
    # Under EVICT_FOR_RUNNING the prefill of 5 evicts 2 and 1: 5 blocks.
    greedy = by_place(evict_for=EVICT_FOR_RUNNING)
    assert formed(greedy, state(8, 0, 3), decode(), state(2, 1, 2), blocks=8) == ([(0, 5)], [2, 1], 0)
    # One of 6 evicts them too, still lacks one, and gives up its own 3. Formed anew, all wait with 8 blocks free,
    # and 9 tokens find no room: admission is closed for all. So the first runs with the 8 that fit.
    assert formed(greedy, *queue, blocks=8) == ([(0, 8)], [2, 1, 0], 0)


def test_ties_of_victims_go_to_the_later_place():
    queue = state(2, 1, 2), state(2, 1, 2), state(2, 1, 2)
    assert formed(by_place(by_priority=True), *queue, blocks=6) == ([(0, 1), (1, 1)], [2], 0)


def test_a_victim_leaves_the_batch_and_returns_its_budgets():
    # Priorities 2, 0, 1: decode 0 takes the last block, decode 1 evicts it (the worst) and takes one of its 3
    # blocks; its token goes to decode 2 where two tokens, or 1 + 2 seconds, or two requests are the limit.
    queue = [state(2, 1, 2, priority=p) for p in (2, 0, 1)]
    for limit in ({"max_num_batched_tokens": 2}, {"time_budget_s": 3}, {"sequence_budget": 2}):
        assert formed(by_place(True, **limit), *queue, blocks=7) == ([(1, 1), (2, 1)], [0], 1), limit


def test_the_sums_of_a_batch_are_those_without_the_victim():
    simulation = waiting_for_a_batch(by_place(True), *(state(2, 1, 2, priority=p) for p in (2, 0, 1)), blocks=7)
    simulation.step()
    assert simulation.arrays.sums[0].decode_requests == 2 and simulation.arrays.sums[0].decode_cached_tokens == 4
    assert simulation.arrays.engines[0].batch_estimate_s == 3 and simulation.arrays.engines[0].scheduled_tokens == 2


def test_its_own_victim_ends_filling():
    # Decode 0 takes the last block; decode 1 is the worst itself: its 2 blocks are free, but filling ends.
    queue = [state(2, 1, 2, priority=p) for p in (0, 2, 0)]
    assert formed(by_place(True), *queue, blocks=7) == ([(0, 1)], [1], 2)


def test_a_request_may_be_admitted_and_evicted_over_and_over_while_one_batch_forms():
    # Five prompts of one token are admitted into the 5 free blocks. The first of twenty prefills that hold a
    # block each wants 99 more, evicts the five, and then itself: the batch is formed anew, twenty times.
    prompts = [state(1, priority=1000) for _ in range(5)]
    running = [state(100, 0, 1, priority=100 - k) for k in range(20)]
    policy = by_place(by_priority=True, evict_for=EVICT_FOR_RUNNING)
    batch, evicted, free = formed(policy, *prompts, *running, blocks=25)
    assert batch == [(place, 1) for place in range(5)] and free == 20
    assert len(evicted) == 20 * 6 and evicted[:6] == [4, 3, 2, 1, 0, 5] and evicted[-1] == 24
    # The timeline has room for all of it, however short it was.
    simulation = waiting_for_a_batch(policy, *prompts, *running, blocks=25)
    used = int(simulation.arrays.status[0].timeline_used)
    short = np.zeros(used + 60, TIMELINE)
    short[:used] = simulation.arrays.timeline[:used]
    simulation.arrays = simulation.arrays._replace(timeline=short)
    simulation.step()
    assert (simulation.arrays.timeline["kind"] == EVICTED).sum() == 120


# Progress


def test_progress_when_no_time_is_enough():
    # Not even 1 + 1 seconds: the first-ranked runs one token (a whole prompt under whole_prompts).
    assert formed(by_place(time_budget_s=0.5), state(5), state(2)).batch == [(0, 1)]
    assert formed(by_place(time_budget_s=0.5, whole_prompts=1), state(5), state(2)).batch == [(0, 5)]
    assert formed(by_place(time_budget_s=0.5), decode(), state(2)).batch == [(0, 1)]
    # Too few for the smallest chunk, yet 3 fit; or 2 under the chunk or token limit.
    tight = by_place(time_budget_s=4, smallest_chunk_tokens=51)
    assert formed(tight, state(60)).batch == [(0, 3)]
    assert formed(tight.with_settings(chunk_tokens=2, time_budget_s=2.5), state(60)).batch == [(0, 1)]


def test_progress_when_prefills_hold_all_memory():
    # Two prefills hold 6 + 2 of 8 blocks: both are skipped, so the first evicts the other and runs.
    assert formed(by_place(), state(7, 0, 6), state(8, 0, 2), blocks=8) == ([(0, 1)], [1], 1)
    # What takes memory for progress emits a token: all 4 left have to fit, 2 blocks of the third and 2 of the second.
    queue = state(7, 0, 3), state(8, 0, 3), state(8, 0, 2)
    assert formed(by_place(), *queue, blocks=8) == ([(0, 4)], [2, 1], 1)
    # Whole: all 6 have to fit, and both others go.
    queue = state(9, 0, 3), state(8, 0, 3), state(8, 0, 3)
    assert formed(by_place(whole_prompts=1), *queue, blocks=9) == ([(0, 6)], [2, 1], 0)


def test_progress_never_evicts_the_one_that_runs():
    # The first-ranked would be the first victim too (the highest priority), and is spared.
    queue = state(6, 0, 3, priority=7), state(8, 0, 3)
    assert formed(by_place(True), *queue, blocks=6) == ([(0, 3)], [1], 0)


def test_requests_left_out():
    assert formed(by_place(), state(5, priority=-1), state(2)).batch == [(1, 2)]
    # All left out: the first of them runs, alone.
    assert formed(by_place(), state(5, priority=-1), state(2, priority=-1)).batch == [(0, 5)]


# Long queues are visited in windows


def test_a_long_queue_is_visited_to_its_end():
    # Only the last of 200 has a block, and no block is free: it alone can run.
    queue = [state(5) for _ in range(199)] + [state(9, 0, 5)]
    assert formed(by_place(), *queue, blocks=9) == ([(199, 4)], [], 0)


def test_a_victim_in_a_long_queue_lets_later_ones_in():
    # 150 decodes, 100 tokens, no block free; odd places are worst. Each two decodes before the eviction...
    queue = [state(2, 1, 2, priority=place % 2) for place in range(150)]
    batch, evicted, free = formed(by_place(True, max_num_batched_tokens=100), *queue, blocks=300)
    # ... place 0 evicts 149 (the latest odd one) and uses 1 of its 2 blocks, place 1 the other, 2 evicts 147, ...
    # Odd places go from the end. After k evictions 2 k decodes ran; even ones are never evicted before odd ones.
    assert free == 2 * len(evicted) - len(batch)
    assert evicted == list(range(149, 149 - 2 * len(evicted), -2))
    taken = [place for place, _ in batch]
    assert taken == [place for place in range(150) if place not in evicted][: len(taken)] and len(taken) == 100

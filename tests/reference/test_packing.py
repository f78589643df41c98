"""Forming a batch, worked by hand: each case with its working (scenes.py has what they are set in)."""

import pytest

from .decisions import LEFT_OUT
from .requests import Request
from .scenes import by_place, formed, row, served, state
from .schedulers import Custom
from .schedulers.sarathi import SarathiFcfs
from .schedulers.vllm import VllmFcfs

# 1 full, 2 phase, 3 chunk


def test_full():
    assert formed(by_place(sequence_budget=2), state(3), state(4), state(5))[0] == [(0, 3), (1, 4)]
    assert formed(by_place(max_num_batched_tokens=7), state(3), state(4), state(5))[0] == [(0, 3), (1, 4)]
    assert formed(by_place(chunk_tokens=2), state(3), state(1), state(5))[0] == [(0, 2), (1, 1), (2, 2)]


def test_first_decides():
    def decode() -> Request:
        return state(3, 1, 3)

    assert formed(by_place(first_decides=True), decode(), state(4), decode())[0] == [(0, 1), (2, 1)]
    assert formed(by_place(first_decides=True), state(4), decode(), state(5))[0] == [(0, 4), (2, 5)]
    assert formed(by_place(), state(4), decode())[0] == [(0, 4), (1, 1)]
    # One that lost its memory (2 tokens out) is a prefill of its whole context of 5.
    assert formed(by_place(first_decides=True), state(3, 2), decode())[0] == [(0, 5)]


def test_first_decides_means_the_first_taken():
    # The prompt finds no room (10 > 9 - 3 free), so a decode is the first taken.
    assert formed(VllmFcfs(), state(10), state(3, 1, 3), blocks=9)[0] == [(1, 1)]


def test_whole_prompts():
    # The first may exceed the budget of 8; none joins it: the batch is full.
    assert formed(VllmFcfs(8), state(9), state(3))[0] == [(0, 9)]
    # 5 + 4 exceeds it: what does not fit ends filling, so the 3 are not reached; passed over, they are.
    assert formed(VllmFcfs(8), state(5), state(4), state(3))[0] == [(0, 5)]
    assert formed(VllmFcfs(8, misfit_ends_filling=False), state(5), state(4), state(3))[0] == [(0, 5), (2, 3)]
    # A prompt cut by time is not whole: 1 + 5 <= 8 seconds, 1 + 5 + 4 > 8, 1 + 5 + 2 <= 8.
    cut = by_place(whole_prompts=True, time_budget_s=8)
    assert formed(cut, state(5), state(4), state(2))[0] == [(0, 5), (2, 2)]


def test_time_budget():
    # 1 + 4 = 5, then 3 of 6 up to 8, then nothing for a decode.
    assert formed(by_place(time_budget_s=8.5), state(4), state(6), state(3, 1, 3))[0] == [(0, 4), (1, 3)]
    # At least 4 in a chunk cut by time: 3 of 6 are too few, a prompt of 3 is not cut.
    few = {"time_budget_s": 8.5, "smallest_chunk_tokens": 4}
    assert formed(by_place(**few), state(4), state(6), state(3))[0] == [(0, 4), (2, 3)]
    assert formed(by_place(**few, misfit_ends_filling=True), state(4), state(6), state(3))[0] == [(0, 4)]
    # Cut by the token budget it may be smaller.
    few = {"max_num_batched_tokens": 6, "smallest_chunk_tokens": 4}
    assert formed(by_place(**few), state(4), state(6))[0] == [(0, 4), (1, 2)]


def test_steps():
    def batch(budget_s: float, *queue: Request, **more: float) -> list[tuple[int, int]]:
        return formed(by_place(time_budget_s=budget_s, step_tokens=4, **more), *queue)[0]

    # 9 fit 10.5 s; 9 s / 8 is less than 13 s / 9. Then the batch is full.
    assert batch(10.5, state(20)) == batch(10.5, state(9), state(3, 1, 3)) == [(0, 8)]
    assert batch(10.5, state(8), state(5)) == [(0, 8)]
    # 12 fit.
    assert batch(13.5, state(9), state(9)) == [(0, 9), (1, 3)]
    assert batch(4.5, state(20)) == [(0, 3)]
    assert batch(10.5, state(9), whole_prompts=True) == batch(10.5, state(20), untimed_prefill_tokens=9) == [(0, 9)]
    assert batch(11.5, state(6), state(9), state(3), smallest_chunk_tokens=4) == [(0, 6), (2, 2)]


def test_untimed_decodes():
    # 1 + 1 > 1.5: no decode fits; untimed, all do, and use up the time of the prefill behind them.
    queue = [state(3, 1, 3), state(3, 1, 3), state(4)]
    assert formed(by_place(time_budget_s=1.5, untimed_decodes=True), *queue)[0] == [(0, 1), (1, 1)]
    queue = [state(3, 1, 3), state(3, 1, 3), state(4)]
    assert formed(by_place(time_budget_s=4.5, untimed_decodes=True), *queue)[0] == [(0, 1), (1, 1), (2, 1)]
    # They keep to the other limits.
    queue = [state(3, 1, 3), state(3, 1, 3)]
    assert formed(by_place(time_budget_s=0, max_num_batched_tokens=1, untimed_decodes=True), *queue)[0] == [(0, 1)]


def test_untimed_prefill_tokens():
    def batch(untimed: int, budget_s: float = 4, **more: float) -> list[tuple[int, int]]:
        limits = by_place(time_budget_s=budget_s, untimed_prefill_tokens=untimed, **more)
        return formed(limits, state(3, 1, 3), state(5), state(9))[0]

    # 1 + 1 s for the decode, 2 of 5 tokens fit in 4 s; of those 2 also count as untimed.
    assert batch(0) == [(0, 1), (1, 2)]
    assert batch(2) == [(0, 1), (1, 2)]
    assert batch(4) == [(0, 1), (1, 4)]
    assert batch(7) == [(0, 1), (1, 5), (2, 2)]
    assert batch(7, max_num_batched_tokens=4) == [(0, 1), (1, 3)]
    assert batch(7, chunk_tokens=3) == [(0, 1), (1, 3), (2, 3)]
    # What is cut at the untimed tokens is cut by time: too small, it does not fit.
    assert batch(7, smallest_chunk_tokens=3) == [(0, 1), (1, 5)]
    # Decodes have no part in them.
    assert batch(7, budget_s=0) == [(1, 5), (2, 2)]


# 4 admission


def test_admission_needs_room_for_the_context_and_the_watermark():
    # 100 blocks, watermark 10. Alone, 100 tokens fit; beside a running request of 20, up to 70 do.
    assert formed(by_place(), state(100), blocks=100, watermark_blocks=10)[0] == [(0, 100)]
    assert formed(by_place(), state(20), state(70), blocks=100, watermark_blocks=10)[0] == [(0, 20), (1, 70)]
    assert formed(by_place(), state(20), state(71), blocks=100, watermark_blocks=10)[0] == [(0, 20)]
    # A chunk of 30 would have had room, but the context is reserved (and only the chunk is taken).
    memory = {"blocks": 100, "watermark_blocks": 10}
    chunks = by_place(chunk_tokens=30)
    assert formed(chunks, state(20), state(71), **memory) == ([(0, 20)], [], 80)
    chunks = by_place(chunk_tokens=30, reserve_context=False)
    assert formed(chunks, state(20), state(71), **memory) == ([(0, 20), (1, 30)], [], 50)


def test_headroom():
    # 100 blocks, watermark 10, headroom 20: alone 100 tokens fit; beside a running request of 20 up to 50 do.
    memory = {"blocks": 100, "watermark_blocks": 10}
    spare = Custom(lambda r, now_s: (r.index,), headroom=20)
    assert formed(spare, state(100), **memory)[0] == [(0, 100)]
    assert formed(spare, state(20), state(50), **memory)[0] == [(0, 20), (1, 50)]
    assert formed(spare, state(20), state(51), **memory)[0] == [(0, 20)]
    # A running request's growth needs none.
    assert formed(spare, state(20), state(70, 0, 5), **memory)[0] == [(0, 20), (1, 65)]


def test_watermark_is_rounded_down():
    # 0.05 x 59 = 2.95: 2 blocks. 57 = 59 - 2 are left beside nobody; 20 + 37 + 2 = 59 fit.
    log = served([row(20, 1), row(37, 1)], SarathiFcfs(512), blocks=59, watermark=0.05)
    assert log.iterations[0].batch == [(0, 20), (1, 37)]
    log = served([row(20, 1), row(38, 1)], SarathiFcfs(512), blocks=59, watermark=0.05)
    assert log.iterations[0].batch == [(0, 20)]


def test_admission_stays_closed():
    # 30 find no room among 20 - 5; the 2 behind them would, but admission is closed. A running one still runs.
    running = state(8, 0, 2)
    assert formed(by_place(), state(3), state(30), state(2), running, blocks=20)[0] == [(0, 3), (3, 6)]
    # Two running requests at most: place 0 is one, place 1 becomes one.
    batch = formed(by_place(max_num_seqs=2), state(8, 0, 2), state(3), state(3))[0]
    assert batch == [(0, 6), (1, 3)]


# Progress


def test_progress_when_no_time_is_enough():
    # Not even 1 + 1 seconds: the first-ranked runs one token (a whole prompt under `whole_prompts`).
    assert formed(by_place(time_budget_s=0.5), state(5), state(2))[0] == [(0, 1)]
    assert formed(by_place(time_budget_s=0.5, whole_prompts=True), state(5), state(2))[0] == [(0, 5)]
    # Too few for the smallest chunk, yet 3 fit.
    assert formed(by_place(time_budget_s=4, smallest_chunk_tokens=51), state(60))[0] == [(0, 3)]


def test_progress_when_prefills_hold_all_memory():
    # Two prefills hold 6 + 2 of 8 blocks: both are skipped, so the first evicts the other and runs.
    assert formed(by_place(), state(7, 0, 6), state(8, 0, 2), blocks=8) == ([(0, 1)], [1], 1)
    # What takes memory for progress emits a token: all 4 left have to fit, 2 blocks of the third and 2 of the second.
    queue = state(7, 0, 3), state(8, 0, 3), state(8, 0, 2)
    assert formed(by_place(), *queue, blocks=8) == ([(0, 4)], [2, 1], 1)
    # Whole: all 6 have to fit, and both others go.
    queue = state(9, 0, 3), state(8, 0, 3), state(8, 0, 3)
    assert formed(by_place(whole_prompts=True), *queue, blocks=9) == ([(0, 6)], [2, 1], 0)


def test_progress_admits_a_prompt_larger_than_memory_and_then_gives_up():
    # 9 tokens never fit into 8 blocks: 8 run, and then there is nobody to evict.
    with pytest.raises(ValueError, match="request 0 does not fit"):
        served([row(9, 1)], SarathiFcfs(512), blocks=8)


def test_progress_of_those_left_out():
    assert formed(Custom(lambda r, now_s: (LEFT_OUT, 0)), state(5), state(2))[0] == [(0, 5)]
    assert formed(Custom(lambda r, now_s: (LEFT_OUT, -r.index)), state(5), state(2))[0] == [(1, 2)]
    assert formed(Custom(lambda r, now_s: (0 if r.index else LEFT_OUT, 0)), state(5), state(2))[0] == [(1, 2)]


def test_those_left_out_give_up_their_memory_first():
    # The decode of place 1 evicts, of two that are left out, the one with the highest key.
    keys = {0: 7, 2: 5}
    scheduler = Custom(lambda r, now_s: (LEFT_OUT, keys[r.index]) if r.index in keys else (0, 9))
    assert formed(scheduler, state(2, 1, 2), state(3, 1, 3), state(2, 1, 2), blocks=7) == ([(1, 1)], [0], 1)

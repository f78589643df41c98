"""Cases worked by hand, each with its working, that the reference simulator must get right.

Unless a case says otherwise a batch takes 1 s + 1 s a token, a KV block holds one token, SLOs are far off.
"""

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from .latency import Linear, Piecewise
from .schedulers import (
    Custom,
    Edf,
    SarathiFcfs,
    SarathiPriority,
    Scheduler,
    Sjf,
    SlideBatching,
    VllmFcfs,
    VllmV1,
)
from .simulator import Engine, Log, Request, Simulation, largest, simulate

SECONDS = Linear(a_p=0, b_p=0, c_p=1, a_d=0, b_d=1, t_c=1)
FAR = {"ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0, "first_token_gain": 1.0, "decode_token_gain": 1.0}


def row(prompt: int, output: int, arrival_s: float = 0.0, **more: Any) -> dict:
    return {**FAR, "arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output, **more}


def served(
    rows: list[dict],
    scheduler: Scheduler,
    blocks: int = 1000,
    engines: int = 1,
    watermark: float = 0.0,
    until_s: float = math.inf,
) -> Log:
    return simulate(rows, engines, 1, blocks, watermark, scheduler, SECONDS, SECONDS, until_s)


def steps(log: Log) -> list[tuple]:
    return [(i.start_s, i.end_s, i.batch, i.evicted, i.free_blocks) for i in log.iterations]


def state(
    prompt: int, emitted: int = 0, computed: int = 0, admitted: int = 0, evicted: int = 0, **more: Any
) -> Request:
    """A request in the middle of a run, its blocks of one token each."""
    request = Request(index=0, **row(prompt, 100, **more))
    request.emitted, request.computed, request.blocks = emitted, computed, computed
    request.admitted, request.evicted = admitted, evicted
    return request


def formed(
    scheduler: Scheduler, *queue: Request, blocks: int = 1000, watermark_blocks: int = 0, now_s: float = 0.0
) -> tuple[list[tuple[int, int]], list[int], int]:
    """One batch formed from a queue: (place, tokens) in batch order, places evicted, blocks left free."""
    for place, request in enumerate(queue):
        request.index = place
    engine = Engine(0, 1, blocks, watermark_blocks, list(queue))
    batch, evicted = Simulation(list(queue), [engine], scheduler, SECONDS, SECONDS).form_batch(engine, now_s)
    return [(r.index, tokens) for r, tokens in batch], [r.index for r in evicted], engine.free_blocks


def by_place(**limits: Any) -> Custom:
    """Ranks requests by their place in the queue."""
    return Custom(lambda r, now_s: (r.index,), **limits)


# Time


def test_one_request():
    # Prefill of 4: 0 to 1 + 4 = 5, token 1. Two decodes of 1 + 1 = 2 s: tokens at 7 and 9.
    # The last token is never computed: 4 + 2 blocks at the end, then all are free.
    log = served([row(4, 3, ttft_slo_s=5.5, tpot_slo_s=1.75, decode_token_gain=0.25)], SarathiFcfs(512), 10)
    assert steps(log) == [(0, 5, [(0, 4)], [], 6), (5, 7, [(0, 1)], [], 5), (7, 9, [(0, 1)], [], 4)]
    assert log.emission_s == [[5, 7, 9]] and log.finish_s == [9]
    # Deadlines 5.5, 7.25 and 9: strictly before counts, so 9 at 9 does not. 1 + 0.25.
    assert log.gains == [1.25] and log.gain == 1.25


def test_ttlt_is_the_deadline_of_every_token():
    log = served([row(4, 3, ttft_slo_s=1, tpot_slo_s=1, ttlt_slo_s=9)], SarathiFcfs(512))
    assert log.gain == 2  # tokens at 5, 7, 9; the deadline of all is 9


def test_two_requests_in_chunks():
    # Budget 4. 0-5: 4 of r0's 6. 5-10: r0's other 2 (token 1 at 10) and 2 of r1's 3.
    # 10-13: r0 decodes first (token 2, the end), then r1's last 1: token 1, the end.
    log = served([row(6, 2), row(3, 1)], SarathiFcfs(4))
    assert [(s, e, b) for s, e, b, _, _ in steps(log)] == [
        (0, 5, [(0, 4)]),
        (5, 10, [(0, 2), (1, 2)]),
        (10, 13, [(0, 1), (1, 1)]),
    ]
    assert log.emission_s == [[10, 13], [13]] and log.finish_s == [13, 13]


def test_an_arrival_at_the_end_of_an_iteration_joins_the_next():
    log = served([row(4, 2), row(3, 1, arrival_s=5.0)], SarathiFcfs(512))
    assert [i.batch for i in log.iterations] == [[(0, 4)], [(0, 1), (1, 3)]]


def test_engines_take_turns_and_ties_go_by_index():
    # r0, r2 -> engine 0 (2 + 3 tokens: ends at 6), r1, r3 -> engine 1 (4 + 1: ends at 6).
    log = served([row(2, 2), row(4, 2), row(3, 1), row(1, 1)], SarathiFcfs(512), engines=2)
    assert [(i.engine, i.start_s, i.batch) for i in log.iterations] == [
        (0, 0, [(0, 2), (2, 3)]),
        (1, 0, [(1, 4), (3, 1)]),
        (0, 6, [(0, 1)]),
        (1, 6, [(1, 1)]),
    ]


def test_idle_between_arrivals_and_until():
    log = served([row(4, 1), row(2, 3, arrival_s=50.0)], SarathiFcfs(512), until_s=53.0)
    # 50-53: token 1 at 53; the decode started at 53 ends after `until_s`.
    assert [i.start_s for i in log.iterations] == [0, 50, 53]
    assert log.emission_s == [[5], [53]] and log.finish_s == [5, None]


def test_a_run_with_an_eviction():
    # 8 blocks. 0-7: both prompts (3 + 3), 2 free. 7-10: both decode, 0 free. At 10 r0 wants a block:
    # r1, admitted last, gives up its 4, r0 takes 1 and has 5; r1 may not come back in this batch.
    # At 12 r0 has 6, and r1's context of 3 + 2 does not fit into 2. r0 ends at 14 with 4 tokens;
    # r1 computes 5, token 3 at 20.
    log = served([row(3, 4), row(3, 3)], VllmV1(), blocks=8)
    assert steps(log) == [
        (0, 7, [(0, 3), (1, 3)], [], 2),
        (7, 10, [(0, 1), (1, 1)], [], 0),
        (10, 12, [(0, 1)], [1], 3),
        (12, 14, [(0, 1)], [], 2),
        (14, 20, [(1, 5)], [], 3),
    ]
    assert log.emission_s == [[7, 10, 12, 14], [7, 10, 20]] and log.evictions == 1


# Forming a batch: 1 full, 2 phase, 3 chunk


def test_full():
    assert formed(by_place(sequence_budget=2), state(3), state(4), state(5))[0] == [(0, 3), (1, 4)]
    assert formed(by_place(token_budget=7), state(3), state(4), state(5))[0] == [(0, 3), (1, 4)]
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
    few = {"token_budget": 6, "smallest_chunk_tokens": 4}
    assert formed(by_place(**few), state(4), state(6))[0] == [(0, 4), (1, 2)]


# 4 admission


def test_admission_needs_room_for_the_context_and_the_watermark():
    # 100 blocks, watermark 10. Alone, 100 tokens fit; beside a holder of 20, up to 70 do.
    assert formed(by_place(), state(100), blocks=100, watermark_blocks=10)[0] == [(0, 100)]
    assert formed(by_place(), state(20), state(70), blocks=100, watermark_blocks=10)[0] == [(0, 20), (1, 70)]
    assert formed(by_place(), state(20), state(71), blocks=100, watermark_blocks=10)[0] == [(0, 20)]
    # A chunk of 30 would have had room, but the context is reserved (and only the chunk is taken).
    memory = {"blocks": 100, "watermark_blocks": 10}
    chunks = by_place(chunk_tokens=30)
    assert formed(chunks, state(20), state(71), **memory) == ([(0, 20)], [], 80)
    chunks = by_place(chunk_tokens=30, reserve_context=False)
    assert formed(chunks, state(20), state(71), **memory) == ([(0, 20), (1, 30)], [], 50)


def test_watermark_is_rounded_down():
    # 0.05 x 59 = 2.95: 2 blocks. 57 = 59 - 2 are left beside nobody; 20 + 37 + 2 = 59 fit.
    log = served([row(20, 1), row(37, 1)], SarathiFcfs(512), blocks=59, watermark=0.05)
    assert log.iterations[0].batch == [(0, 20), (1, 37)]
    log = served([row(20, 1), row(38, 1)], SarathiFcfs(512), blocks=59, watermark=0.05)
    assert log.iterations[0].batch == [(0, 20)]


def test_admission_stays_closed():
    # 30 find no room among 20 - 5; the 2 behind them would, but admission is closed. A holder still runs.
    holder = state(8, 0, 2)
    assert formed(by_place(), state(3), state(30), state(2), holder, blocks=20)[0] == [(0, 3), (3, 6)]
    # Two holders at most: place 0 is one, place 1 becomes one.
    batch = formed(by_place(holder_budget=2), state(8, 0, 2), state(3), state(3))[0]
    assert batch == [(0, 6), (1, 3)]


# 5 eviction


def test_a_decode_evicts_and_a_prefill_is_skipped():
    # Nothing is free. A prefill holder is skipped; the decode takes a block of the last in rank.
    assert formed(by_place(), state(9, 0, 3), state(3, 1, 3), state(2, 1, 2), blocks=8) == ([(1, 1)], [2], 1)
    # Under EVICT_FOR_HOLDERS the prefill of 6 evicts 2 and 1 (2 + 3 blocks), still lacks 1, and gives up its
    # own 3. Formed anew, all three are waiting with 8 blocks free, and 9 tokens find no room: admission is
    # closed for all. So the first-ranked runs with the 8 that fit.
    greedy = by_place(evict_for_holders=True)
    queue = state(9, 0, 3), state(3, 1, 3), state(2, 1, 2)
    assert formed(greedy, *queue, blocks=8) == ([(0, 8)], [2, 1, 0], 0)
    queue = state(8, 0, 3), state(3, 1, 3), state(2, 1, 2)
    assert formed(greedy, *queue, blocks=8) == ([(0, 5)], [2, 1], 0)


def test_nobody_is_admitted_after_an_eviction():
    # The decode evicts the holder of 4, which leaves 3 blocks: room for 1 token, but admission is closed.
    assert formed(by_place(), state(4, 1, 4), state(1), state(4, 1, 4), blocks=8) == ([(0, 1)], [2], 3)


def test_ties_of_victims_go_to_the_later_place():
    same = Custom(lambda r, now_s: (0,))
    queue = state(2, 1, 2), state(2, 1, 2), state(2, 1, 2)
    assert formed(same, *queue, blocks=6) == ([(0, 1), (1, 1)], [2], 0)


def test_a_victim_leaves_the_batch_and_returns_its_tokens():
    # Budget 2, priorities 2, 0, 1: decode 0 takes the last block, decode 1 evicts it (worst priority) and
    # takes one of its 2 + 1 blocks; its token goes to decode 2.
    scheduler = Custom(lambda r, now_s: (r.index,), lambda r: (r.priority,), token_budget=2)
    queue = [state(2, 1, 2, priority=p) for p in (2, 0, 1)]
    assert formed(scheduler, *queue, blocks=7) == ([(1, 1), (2, 1)], [0], 1)


def test_a_victim_returns_its_time():
    # As above with 1 + 2 seconds for two decodes.
    scheduler = Custom(lambda r, now_s: (r.index,), lambda r: (r.priority,), time_budget_s=3)
    queue = [state(2, 1, 2, priority=p) for p in (2, 0, 1)]
    assert formed(scheduler, *queue, blocks=7)[0] == [(1, 1), (2, 1)]


def test_own_victim_ends_filling():
    # Decode 0 takes the last block; decode 1 is the worst itself: its 2 blocks are free, but filling ends.
    scheduler = Custom(lambda r, now_s: (r.index,), lambda r: (r.priority,))
    queue = [state(2, 1, 2, priority=p) for p in (0, 2, 0)]
    assert formed(scheduler, *queue, blocks=7) == ([(0, 1)], [1], 2)


def test_own_victim_with_an_empty_batch_forms_anew():
    # The first holder, priority 1, is its own victim. Formed anew: the other decodes with 1 of the 3 free
    # blocks, and the first, now waiting with a context of 3, finds no room in the 2 that are left.
    queue = state(2, 1, 2, admitted=1, priority=1), state(2, 1, 2, admitted=2, priority=0)
    assert formed(VllmV1("priority"), *queue, blocks=4) == ([(1, 1)], [0], 1)
    # Alone with 2 of 2 blocks it is its own victim too. Formed anew, admission is open: the other, first by
    # priority, is admitted, and 1 block is left, no room for a context of 3.
    queue = state(2, 1, 2, admitted=1, priority=1), state(1, priority=0)
    assert formed(VllmV1("priority"), *queue, blocks=2) == ([(1, 1)], [0], 1)


def test_order_of_admission():
    # Holders by admission (1, then 0); then the evicted, last one first (3, then 2); then by arrival (4).
    queue = (
        state(2, 1, 2, admitted=5),
        state(2, 1, 2, admitted=4),
        state(2, 1, evicted=1),
        state(2, 1, evicted=2),
    )
    order = [(1, 1), (0, 1), (3, 3), (2, 3), (4, 2)]
    assert formed(VllmV1(), *queue, state(2))[0] == order


def test_one_that_comes_back_is_admitted_anew():
    # As in the run with an eviction until 14, when r0 has left and 8 blocks are free. r1 with its context
    # of 5, the third admission of the run, and r2 with 2, the fourth, leave 1 block and end at 14 + 8 = 22.
    # r1's decode takes the block; r2's finds none, and r2, admitted last, is its own victim. At 24 r1 has
    # 6 blocks, takes 1 and leaves 1, no room for r2's 3; r1 ends at 26. r2 computes its 3 tokens and ends.
    log = served([row(3, 4), row(3, 5), row(2, 2, arrival_s=8.0)], VllmV1(), blocks=8)
    assert steps(log)[4:] == [
        (14, 22, [(1, 5), (2, 2)], [], 1),
        (22, 24, [(1, 1)], [2], 2),
        (24, 26, [(1, 1)], [], 1),
        (26, 30, [(2, 3)], [], 5),
    ]


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
    assert formed(Custom(lambda r, now_s: None), state(5), state(2))[0] == [(0, 5)]
    assert formed(Custom(lambda r, now_s: None if r.index == 0 else (0,)), state(5), state(2))[0] == [(1, 2)]


# Schedulers


def test_vllm_fcfs_prefills_first():
    decode = state(3, 1, 3, arrival_s=0.0)
    assert formed(VllmFcfs(), decode, state(4, arrival_s=1.0), state(5, arrival_s=2.0))[0] == [(1, 4), (2, 5)]


def test_sarathi():
    queue = [state(4, priority=1), state(5, priority=0), state(3, 1, 3, priority=1, arrival_s=1.0)]
    assert formed(SarathiFcfs(7), *queue)[0] == [(2, 1), (0, 4), (1, 2)]
    queue = [state(4, priority=1), state(5, priority=0), state(3, 1, 3, priority=1, arrival_s=1.0)]
    assert formed(SarathiPriority(7), *queue)[0] == [(2, 1), (1, 5), (0, 1)]


def test_sarathi_profiled_budget():
    def budget(tpot_slo_s: float, latency: Linear) -> float:
        scheduler = SarathiFcfs()
        # Mean prompt 8, so 4 are cached.
        scheduler.prepare([state(4, tpot_slo_s=tpot_slo_s), state(12, tpot_slo_s=99)], latency)
        return scheduler.limits([], 0).token_budget

    assert budget(50, SECONDS) == 48  # 1 + 48 <= 50 < 1 + 64
    assert budget(49, SECONDS) == 48  # 1 + 48 <= 49: within
    assert budget(3, SECONDS) == 16  # at least 16
    assert budget(70, Linear(0, 0.25, 1, 0, 1, 1)) == 32  # 1 + 32 + 0.25 x 32 x 4 = 65 <= 70 < 1 + 48 x 2


def test_edf_and_sjf():
    def queue() -> list[Request]:
        # Next deadlines: 20; 2 + 10 = 12; 5 + 2 x 3 = 11 (two tokens out). Exec: 3; 4; 1.
        return [
            state(3, ttft_slo_s=20),
            state(4, ttft_slo_s=10, arrival_s=2.0),
            state(9, 2, 10, ttft_slo_s=5, tpot_slo_s=3),
        ]

    assert formed(Edf(), *queue())[0] == [(2, 1), (1, 4), (0, 3)]
    assert formed(Sjf(), *queue())[0] == [(2, 1), (0, 3), (1, 4)]
    assert formed(Edf(token_budget=4), *queue())[0] == [(2, 1), (1, 3)]
    assert formed(Sjf(batch_size=2), *queue())[0] == [(2, 1), (0, 3)]
    # A tie goes to the earlier place.
    assert formed(Edf(), state(3), state(2))[0] == [(0, 3), (1, 2)]


def slide(**options: Any) -> list[tuple[int, int]]:
    """A, B, C with exec 4, 2, 3 (9 in all); remain 10, 100, 8; weights 8, 6, 3: densities 2, 3, 1; t_c 1."""
    queue = [
        state(4, ttft_slo_s=10, first_token_gain=8),
        state(2, ttft_slo_s=100, first_token_gain=6),
        state(3, ttft_slo_s=8, first_token_gain=3),
    ]
    return formed(SlideBatching(**{"eta": 1, **options}), *queue)[0]


def test_slide_batching_urgent_and_normal():
    a, b, c = 0, 1, 2
    # t_min = t_budget = 8 (C's). phi a = 8 / 7 x 9 = 10.3: A and C are urgent, by density A first;
    # 1 + 4 + 3 = 8 seconds, and B, normal, has no time left.
    assert slide() == [(a, 4), (c, 3)]
    # gamma 0.5: 5.1; all are normal, by remain C, A, B.
    assert slide(gamma=0.5) == [(c, 3), (a, 4)]
    # gamma 10: 103; B (100) is urgent too: B, A, and 1 token of C up to 8 seconds.
    assert slide(gamma=10) == [(b, 2), (a, 4), (c, 1)]
    # eta 9 is a larger budget than t_min: phi a = 9 / 8 x 9 = 10.1; one more second goes to B.
    assert slide(eta=9) == [(a, 4), (c, 3), (b, 1)]


def test_slide_batching_phi():
    a, c = 0, 2
    # phi c in order of remain C, A, B: 8 / 7 x (3, 7, 9) = 3.4, 8, 10.3: C 8, A 10, B 100 are all normal.
    assert slide(phi="c") == [(c, 3), (a, 4)]
    # gamma 1.3: 4.5, 10.4, 13.4: A (10) is urgent, C (8) is not.
    assert slide(phi="c", gamma=1.3) == [(a, 4), (c, 3)]
    # gamma 0.85: phi a 8.7, only C is urgent; phi p = 0.85 x (9 + 3 x 1) = 10.2, A and C are.
    assert slide(phi="a", gamma=0.85) == [(c, 3), (a, 4)]
    assert slide(phi="p", gamma=0.85) == [(a, 4), (c, 3)]


def test_slide_batching_ablations():
    a, b, c = 0, 1, 2
    assert slide(ablation="only-deadline") == [(c, 3), (a, 4)]
    assert slide(ablation="only-density") == [(b, 2), (a, 4), (c, 1)]
    assert slide(ablation="no-latency", token_budget=8) == [(a, 4), (c, 3), (b, 1)]


def test_slide_batching_hopeless():
    def batch(**options: Any) -> list[tuple[int, int]]:
        # D cannot make it: remain 2 < 5 + 1. C can: 8 >= 3 + 1. Densities 1/5 and 1/3.
        return formed(SlideBatching(**options), state(5, ttft_slo_s=2), state(3, ttft_slo_s=8))[0]

    # Excluded: t_budget 8, phi 8 / 7 x 8: both urgent; C's 3, then 4 of D up to 8 seconds.
    assert batch(eta=1) == [(1, 3), (0, 4)]
    # Included: t_budget 2, room for 1 token of C.
    assert batch(eta=1, hopeless="include") == [(1, 1)]
    # remain = exec + t_c can still make it: t_budget 6.
    assert formed(SlideBatching(eta=1), state(9, ttft_slo_s=6), state(5, ttft_slo_s=6))[0] == [(1, 5)]


def test_slide_batching_without_hope_or_time():
    # None can make it: t_budget = eta = 3, so 2 tokens.
    assert formed(SlideBatching(eta=3), state(5, ttft_slo_s=2))[0] == [(0, 2)]
    # eta 0.5 <= t_c: all are urgent, by density (1/5, 100/50) place 1 is first; none fits: it runs 1 token.
    hopeless = state(5, ttft_slo_s=2), state(50, ttft_slo_s=40, first_token_gain=100)
    assert formed(SlideBatching(eta=0.5), *hopeless)[0] == [(1, 1)]
    # Under phi p: 55 + 2 x 1 = 57, times 0.1 is 5.7: only place 0 is urgent.
    hopeless = state(5, ttft_slo_s=2), state(50, ttft_slo_s=40, first_token_gain=100)
    assert formed(SlideBatching(eta=0.5, phi="p", gamma=0.1), *hopeless)[0] == [(0, 1)]


def test_slide_batching_eta_by_default():
    scheduler = SlideBatching()
    scheduler.prepare([state(5, tpot_slo_s=20), state(5, tpot_slo_s=40)], SECONDS)
    assert scheduler.t_budget([], 0.0) == 0.65 * 20


def test_xllm_order():
    def queue() -> list[Request]:
        # At 10: place 0 fresh, remain 5, density 1/4. Place 1 starved: remain -9 < -1 x 1, density 1/8.
        # Place 2 remain -0.5, not starved, density 1/2. Place 3 decodes, density 1/1.
        return [
            state(4, ttft_slo_s=15),
            state(8, ttft_slo_s=1),
            state(2, ttft_slo_s=1, arrival_s=8.5),
            state(3, 1, 3, ttft_slo_s=6, tpot_slo_s=1),
        ]

    # t_budget 100 holds all; phi a = 100 / 99 x 15 = 15.2 > remain: all urgent.
    options = {"eta": 100, "xllm": True}
    assert formed(SlideBatching(**options), *queue(), now_s=10)[0] == [(3, 1), (1, 8), (2, 2), (0, 4)]
    # Nobody is starved at a threshold of 9 (-9 < -9 is false): by density.
    options["starve_threshold"] = 9
    assert formed(SlideBatching(**options), *queue(), now_s=10)[0] == [(3, 1), (2, 2), (0, 4), (1, 8)]


def test_xllm_filling():
    def queue() -> list[Request]:
        # All hopeless at ttft 1, so t_budget = eta = 41; densities 1/100 x 5, 1, 1/50.
        gains = [5.0, 10.0, 0.1]
        return [state(n, ttft_slo_s=1, first_token_gain=g) for n, g in zip([100, 10, 5], gains, strict=True)]

    # 1 + 10, then 30 of 100 up to 41.
    assert formed(SlideBatching(eta=41), *queue())[0] == [(1, 10), (0, 30)]
    # 30 are fewer than 51: filling ends, the 5 are not reached.
    assert formed(SlideBatching(eta=41, xllm=True), *queue())[0] == [(1, 10)]
    # 1 + 10 + 51 = 62.
    assert formed(SlideBatching(eta=62, xllm=True), *queue())[0] == [(1, 10), (0, 51)]


# Parts


def test_latency():
    linear = Linear(a_p=0.5, b_p=0.25, c_p=2, a_d=0.125, b_d=3, t_c=7)
    assert linear.exec(4, 8, False) == 0.5 * 16 + 0.25 * 4 * 8 + 2 * 4 == 24
    assert linear.exec(1, 8, True) == 0.125 * 8 + 3 == 4
    assert linear.batch([(4, 8, False), (1, 8, True)]) == 24 + 4 + 7 and linear.batch([]) == 7
    curve = Piecewise((2, 6, 10), (2, 4, 12), a_p=1, b_p=2, f_p=100, a_d=0.5, f_d=0.25, t_c=10)
    assert [curve.base(n) for n in (0, 2, 4, 6, 8, 10, 12)] == [2, 2, 3, 4, 8, 12, 16]
    assert curve.batch([]) == 10 + 2
    # 2 + 3 prefill tokens and 2 decodes: base(7) = 6; 4 + 9; 2 x (0 + 3 x 4) + 100; 0.5 x (6 + 2) + 0.25.
    shapes = [(2, 0, False), (1, 6, True), (3, 4, False), (1, 2, True)]
    assert curve.batch(shapes) == 10 + 6 + 13 + (24 + 100) + 4.25
    assert curve.exec(4, 0, False) == (3 - 2) + 16 + 100 and curve.exec(1, 6, True) == 3.25


def test_bisection_finds_what_plain_search_finds():
    rng = random.Random(1)
    latencies = [
        Linear(1e-6, 1e-7, 1e-3, 1e-5, 1e-3, 1e-2),
        Piecewise((1, 16, 64), (0.01, 0.011, 0.1), 1e-6, 1e-7, 1e-3),
    ]
    for latency in latencies:
        for _ in range(200):
            cached, most, budget_s = rng.randrange(500), rng.randrange(300), rng.random() / 2

            def fits(c: int, latency=latency, cached=cached, budget_s=budget_s) -> bool:
                return latency.batch([(c, cached, False)]) <= budget_s

            plain = next((c for c in range(most, 0, -1) if fits(c)), 0)
            assert largest(most, fits) == plain


FIXTURES = Path(__file__).parents[1] / "vllm_v1" / "fixtures"


@pytest.mark.parametrize("name", ["fcfs-pressure-no-reserve", "priority-pressure-chunked", "watermark", "idle-gaps"])
def test_vllm_v1_takes_the_steps_of_the_real_scheduler(name):
    log = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    given, second = log["scenario"], Linear(0, 0, 0, 0, 0, 1.0)
    scheduler = VllmV1(
        given["policy"],
        given["token_budget"],
        given["max_num_seqs"],
        reserve_context=given["reserve_full_isl"],
        watermark_blocks=int(given["watermark"] * (given["usable_blocks"] + 1)),
    )
    rows = [FAR | request for request in log["requests"]]
    size = given["block_size"], given["usable_blocks"]
    mine = simulate(rows, 1, *size, 0.0, scheduler, second, second).iterations
    assert [(i.start_s, [list(pair) for pair in i.batch], i.evicted, i.free_blocks) for i in mine] == [
        (step["t"], step["scheduled"], step["preempted"], step["free_blocks"]) for step in log["steps"]
    ]

"""Which requests give up memory, and for which; cases worked by hand, set in scenes.py."""

from .requests import Request
from .scenes import by_place, formed, row, served, state, steps
from .schedulers import Custom
from .schedulers.vllm import VllmV1


def test_a_decode_evicts_and_a_prefill_is_skipped():
    # Nothing is free. A running prefill is skipped; the decode takes a block of the last in rank.
    assert formed(by_place(), state(9, 0, 3), state(3, 1, 3), state(2, 1, 2), blocks=8) == ([(1, 1)], [2], 1)
    # Under EVICT_FOR_RUNNING the prefill of 6 evicts 2 and 1 (2 + 3 blocks), still lacks 1, and gives up its
    # own 3. Formed anew, all three are waiting with 8 blocks free, and 9 tokens find no room: admission is
    # closed for all. So the first-ranked runs with the 8 that fit.
    greedy = by_place(evict_for="running")
    queue = state(9, 0, 3), state(3, 1, 3), state(2, 1, 2)
    assert formed(greedy, *queue, blocks=8) == ([(0, 8)], [2, 1, 0], 0)
    queue = state(8, 0, 3), state(3, 1, 3), state(2, 1, 2)
    assert formed(greedy, *queue, blocks=8) == ([(0, 5)], [2, 1], 0)


def test_newcomers_that_evict():
    def queue(newcomer: int) -> list[Request]:
        """A newcomer and two running requests that decode, of 2 and 3 blocks."""
        return [state(newcomer), state(2, 1, 2), state(3, 1, 3)]

    eager = by_place(evict_for="all")
    # 1 of 6 is free: 4 tokens find room without place 2, whose victim rank is the highest. The decode of place 1 then
    # has no block, and is its own victim.
    assert formed(eager, *queue(4), blocks=6) == ([(0, 4)], [2, 1], 2)
    # 5 only without both.
    assert formed(eager, *queue(5), blocks=6) == ([(0, 5)], [2, 1], 1)
    # With a watermark of 1: 3 + 1 of 6 without place 2; without both there is no running request and no watermark.
    assert formed(eager, *queue(3), blocks=6, watermark_blocks=1) == ([(0, 3), (1, 1)], [2], 0)
    assert formed(eager, *queue(6), blocks=6, watermark_blocks=1) == ([(0, 6)], [2, 1], 0)


def test_newcomers_evict_only_those_below_them():
    def batch(newcomer: int) -> tuple:
        # Place 0 holds 4, place 2 holds 3 of 8. Ranks by place.
        queue = state(6, 0, 4), state(newcomer), state(5, 0, 3)
        return formed(by_place(evict_for="all", chunk_tokens=1), *queue, blocks=8, watermark_blocks=0)

    # Place 0 takes the free block; without place 2 there would be 3.
    assert batch(3) == ([(0, 1), (1, 1)], [2], 2)
    # 4 are not to be had: none is evicted, and place 2, a prefill, evicts by rule 5: itself.
    assert batch(4) == ([(0, 1)], [2], 3)


def test_admission_stays_open_after_a_newcomer_evicts():
    # Place 0 evicts the running request of 4, place 1 finds room for its 1 in what is left.
    queue = state(2), state(1), state(4, 1, 4)
    assert formed(by_place(evict_for="all"), *queue, blocks=4) == ([(0, 2), (1, 1)], [2], 1)
    # The victim itself does not: its context of 5 has no room in the 1, and none is below it.
    queue = state(2), state(1), state(2, 1, 2)
    assert formed(by_place(evict_for="all"), *queue, blocks=6) == ([(0, 2), (1, 1), (2, 1)], [], 0)


def test_a_newcomer_may_evict_what_is_in_the_batch():
    # Priorities 2 and 1: the decode of place 0 is in the batch with 3 of 4 blocks; the newcomer evicts it.
    scheduler = Custom(lambda r, now_s: (r.index,), lambda r: (r.priority,), evict_for="all")
    assert formed(scheduler, state(2, 1, 2, priority=2), state(2, priority=1), blocks=4) == ([(1, 2)], [0], 2)
    assert formed(scheduler, state(2, 1, 2, priority=1), state(2, priority=1), blocks=4) == ([(0, 1)], [], 1)


def test_none_is_admitted_after_an_eviction():
    # The decode evicts the running request of 4, which leaves 3 blocks: room for 1 token, but admission is closed.
    assert formed(by_place(), state(4, 1, 4), state(1), state(4, 1, 4), blocks=8) == ([(0, 1)], [2], 3)


def test_ties_of_victims_go_to_the_later_place():
    same = Custom(lambda r, now_s: (0,))
    queue = state(2, 1, 2), state(2, 1, 2), state(2, 1, 2)
    assert formed(same, *queue, blocks=6) == ([(0, 1), (1, 1)], [2], 0)


def test_a_victim_leaves_the_batch_and_returns_its_tokens():
    # Budget 2, priorities 2, 0, 1: decode 0 takes the last block, decode 1 evicts it (worst priority) and
    # takes one of its 2 + 1 blocks; its token goes to decode 2.
    scheduler = Custom(lambda r, now_s: (r.index,), lambda r: (r.priority,), max_num_batched_tokens=2)
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
    # The first running request, priority 1, is its own victim. Formed anew: the other decodes with 1 of the 3 free
    # blocks, and the first, now waiting with a context of 3, finds no room in the 2 that are left.
    queue = state(2, 1, 2, admitted=1, priority=1), state(2, 1, 2, admitted=2, priority=0)
    assert formed(VllmV1("priority"), *queue, blocks=4) == ([(1, 1)], [0], 1)
    # Alone with 2 of 2 blocks it is its own victim too. Formed anew, admission is open: the other, first by
    # priority, is admitted, and 1 block is left, no room for a context of 3.
    queue = state(2, 1, 2, admitted=1, priority=1), state(1, priority=0)
    assert formed(VllmV1("priority"), *queue, blocks=2) == ([(1, 1)], [0], 1)


def test_order_of_admission():
    # Running requests by admission (1, then 0); then the evicted, last one first (3, then 2); then by arrival (4).
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

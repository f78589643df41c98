"""KV kept in host memory, worked by hand (set in scenes.py)."""

from .disturbances import Corrector
from .engines import Engine, HostMemory
from .latency import Linear
from .requests import INF, Request
from .scenes import SECONDS, by_place, formed, forming, row, served, state, steps
from .schedulers import Custom
from .schedulers.vllm import VllmV1
from .simulator import Simulation

ROOMY = HostMemory(blocks=100, load_s_per_token=0.5, save_s_per_token=0.25)


class KeepingV1(VllmV1):
    """Saves as much of a victim as there is room for."""

    def keep_tokens(self, queue: list[Request]) -> list[int]:
        return [1000] * len(queue)


def waiting(prompt: int, emitted: int = 0, kept: int = 0, **more: float) -> Request:
    """A request that lost its blocks, with so much of it in host memory."""
    request = state(prompt, emitted, **more)
    request.kept = kept
    return request


def test_words():
    r = waiting(5, 2, kept=3)
    assert (r.context, r.cached, r.left, r.decoding, r.running) == (7, 3, 4, False, False)
    assert r.shape(4) == (4, 3, False)
    assert waiting(5, 2, kept=6).decoding and not waiting(5, 0, kept=4).decoding


def test_what_a_victim_keeps():
    def after(keep: int | None, host: HostMemory) -> tuple[int, int, float]:
        """Of a decode's victim with 4 tokens computed: kept, free host blocks, moving."""
        victim = state(4, 1, 4)
        made = forming(Custom(lambda r, now_s: (r.index,), keep=keep), state(3, 1, 3), victim, blocks=7, host=host)
        assert [r.index for r in made.evicted] == [1] and victim.computed == victim.blocks == 0
        return victim.kept, made.engine.free_host_blocks, made.moving_s

    assert after(None, ROOMY) == (0, 100, 0)
    assert after(3, ROOMY) == (3, 97, 0.75)
    assert after(1000, ROOMY) == (4, 96, 1)  # no more than was computed
    assert after(-1, ROOMY) == (0, 100, 0)
    assert after(1000, HostMemory(2, 1, 1)) == (2, 0, 2)  # no more than there is room for
    assert after(1000, HostMemory()) == (0, 0, 0)


def test_host_memory_comes_in_blocks():
    # 4 tokens a block. Place 0 holds 1 block for 4 tokens and its decode needs a second; place 1 holds 2 blocks
    # for 6 tokens. Of 3 host blocks another's 5 kept tokens take 2: 4 of the 6 can be saved.
    queue = state(3, 2, 4), state(6, 1, 6), waiting(9, 0, kept=5)
    queue[0].blocks, queue[1].blocks = 1, 2
    scheduler = Custom(lambda r, now_s: (r.index,), keep=1000)
    made = forming(scheduler, *queue, blocks=3, host=HostMemory(3, 1, 1), block_tokens=4)
    assert [(r.index, c) for r, c in made.batch] == [(0, 1)] and queue[0].blocks == 2
    assert queue[1].kept == 4 and made.engine.free_host_blocks == 0 and made.engine.free_blocks == 1


def test_loading_at_admission():
    # 5 of 8 tokens are kept: left 3. Blocks for 5 + 3 are taken; loading takes 2.5 s.
    r = waiting(8, 0, kept=5)
    made = forming(by_place(), r, host=ROOMY)
    assert [(x.index, c) for x, c in made.batch] == [(0, 3)]
    assert (r.computed, r.kept, r.blocks) == (5, 0, 8) and made.moving_s == 2.5 and made.loaded_tokens == 5
    assert made.engine.free_blocks == 992 and made.engine.free_host_blocks == 100
    # A decode is admitted likewise.
    assert formed(by_place(), waiting(8, 2, kept=9), blocks=11, host=ROOMY) == ([(0, 1)], [], 1)


def test_loading_needs_room():
    # Beside a running request of 4, 11 blocks leave 7: the context of 8 has no room.
    assert formed(by_place(), state(6, 0, 4), waiting(8, 0, kept=5), blocks=11, host=ROOMY)[0] == [(0, 2)]
    # Nor has, unreserved, a chunk of 1 with the 5 kept in 11 - 6 = 5 blocks; in 6 it has.
    chunks = by_place(chunk_tokens=1, reserve_context=False)
    for blocks, batch in ((10, [(0, 1)]), (11, [(0, 1), (1, 1)])):
        assert formed(chunks, state(6, 0, 4), waiting(8, 0, kept=5), blocks=blocks, host=ROOMY)[0] == batch


def test_time_of_loads_counts_in_the_budget():
    # Loading takes 2.5 s, then 1 + c seconds <= 5.5 - 2.5: 2 tokens.
    assert formed(by_place(time_budget_s=5.5), waiting(9, 0, kept=5), host=ROOMY)[0] == [(0, 2)]
    # Place 0 (1 + 2 s) leaves 3 s: 2.5 s of loading and no token; place 2 takes all 3.
    batch = formed(by_place(time_budget_s=6), state(2), waiting(9, 0, kept=5), state(4), host=ROOMY)[0]
    assert batch == [(0, 2), (2, 3)]
    # Place 1's loads count for place 2 too: 1 + 2 + 2.5 + 1 of 6.5 (what is left of place 1), nothing for place 2.
    batch = formed(by_place(time_budget_s=6.5), state(2), waiting(6, 0, kept=5), state(4), host=ROOMY)[0]
    assert batch == [(0, 2), (1, 1)]
    # The estimate of 3 tokens is made with 5 cached before them: 1 + 3 + 0.25 x 3 x 5 = 7.75, beside 2.5 s of loads.
    slope = Linear(a_p=0, b_p=0.25, c_p=1, a_d=0, b_d=1, t_c=1)
    for budget_s, chunk in ((10.25, 3), (10.2, 2)):
        r = waiting(8, 0, kept=5)
        assert forming(by_place(time_budget_s=budget_s), r, host=ROOMY, estimator=slope).batch == [(r, chunk)]


def test_time_of_saves_counts_in_the_budget():
    # Decode 0 evicts place 2 and saves 4 tokens, 1 s; 1 + 1 + 1 s, and 2 of 5 s are left for place 1's prefill.
    queue = state(3, 1, 3), state(9, 0, 1), state(4, 1, 4)
    scheduler = Custom(lambda r, now_s: (r.index,), keep=1000, time_budget_s=5)
    assert formed(scheduler, *queue, blocks=8, host=ROOMY) == ([(0, 1), (1, 2)], [2], 1)
    queue = state(3, 1, 3), state(9, 0, 1), state(4, 1, 4)
    assert formed(scheduler, *queue, blocks=8) == ([(0, 1), (1, 3)], [2], 0)


def test_saves_of_attempts_that_came_to_nothing_are_paid():
    # As in "own victim with an empty batch": place 0 gives up its own 2 tokens (0.5 s), place 1 decodes.
    queue = state(2, 1, 2, admitted=1, priority=1), state(2, 1, 2, admitted=2, priority=0)
    made = forming(KeepingV1("priority"), *queue, blocks=4, host=ROOMY)
    # In the second attempt place 1 takes a block, and 1 is left: no room for place 0's context of 3.
    assert [(r.index, c) for r, c in made.batch] == [(1, 1)]
    assert queue[0].kept == 2 and made.saved_tokens == 2 and made.moving_s == 0.5


def test_a_run_with_an_eviction_and_a_load():
    # As in test_time's run with an eviction until 10: r1's 4 computed tokens are saved in 1 s, so r0's decode
    # ends at 13. At 13 r1 (4 kept of 5) is decoding, has no room (5 > 2); r0 ends at 15. r1 is loaded in 2 s
    # and decodes in 2: its third token comes at 19.
    log = served([row(3, 4), row(3, 3)], KeepingV1(), blocks=8, host=ROOMY)
    assert steps(log) == [
        (0, 7, [(0, 3), (1, 3)], [], 2),
        (7, 10, [(0, 1), (1, 1)], [], 0),
        (10, 13, [(0, 1)], [1], 3),
        (13, 15, [(0, 1)], [], 2),
        (15, 19, [(1, 1)], [], 3),
    ]
    assert [i.moving_s for i in log.iterations] == [0, 0, 1, 0, 2]
    moved = [(i.saved, i.loaded, i.free_host_blocks) for i in log.iterations[2:]]
    assert moved == [([4], [], 96), ([], [], 96), ([], [(1, 4)], 100)]


def test_progress_loads_and_saves():
    # A prefill of 7 with 6 kept; another holds all 8 blocks: none is admitted, and the progress of the first
    # evicts it: 3 of its 8 tokens fit into the host's 9 - 6, then the 6 are loaded: 0.75 + 3 s.
    r, other = waiting(7, 0, kept=6), state(9, 0, 8)
    made = forming(
        Custom(lambda r, now_s: (r.index,), keep=1000), r, other, blocks=8, host=HostMemory(9, 0.5, 0.25)
    )  # fmt: skip
    assert [(x.index, c) for x, c in made.batch] == [(0, 1)] and other.kept == 3 and r.computed == 6
    assert made.moving_s == 3.75 and made.engine.free_host_blocks == 6 and made.engine.free_blocks == 1


def test_correction_learns_without_moving():
    # Of the run above: what is estimated is what computing takes, whatever is moved.
    everyone = [Request(index=i, **row(3, output)) for i, output in enumerate((4, 3))]
    engine = Engine(0, 1, 8, 0, host=ROOMY, corrector=Corrector(theta=0.0, window_iterations=1, compounding=False))
    log = Simulation(everyone, [engine], KeepingV1(), SECONDS, SECONDS).run(INF)
    assert log.finish_s == [15, 19] and engine.corrector.scale == 1


def test_busy_time_counts_moving():
    everyone = [Request(index=i, **row(3, output)) for i, output in enumerate((4, 3))]
    engine = Engine(0, 1, 8, 0, host=ROOMY)
    Simulation(everyone, [engine], KeepingV1(), SECONDS, SECONDS).run(until_s=13)
    assert engine.busy_s == 13 and engine.work.start_s == 13  # of the iteration that runs nothing is counted yet

"""KV kept in host memory, worked by hand (set in scenes.py)."""

from .disturbances import Corrector
from .engines import Engine, HostMemory
from .requests import INF, Request
from .scenes import SECONDS, forming, row, state
from .schedulers import Custom
from .schedulers.vllm import VllmV1
from .simulator import Simulation

ROOMY = HostMemory(blocks=100, load_s_per_token=0.5, save_s_per_token=0.25)


class KeepingV1(VllmV1):
    """Save as much of a victim as fits."""

    def keep_tokens(self, queue: list[Request]) -> list[int]:
        return [1000] * len(queue)


def waiting(prompt: int, emitted: int = 0, kept: int = 0, **more: float) -> Request:
    """Make a request that lost its blocks, with part of its KV in host memory."""
    request = state(prompt, emitted, **more)
    request.kept = kept
    return request


def test_saves_of_attempts_that_came_to_nothing_are_paid():
    # As in "own victim with an empty batch": place 0 gives up its own 2 tokens (0.5 s), place 1 decodes.
    queue = state(2, 1, 2, admitted=1, priority=1), state(2, 1, 2, admitted=2, priority=0)
    made = forming(KeepingV1("priority"), *queue, blocks=4, host=ROOMY)
    # In the second attempt place 1 takes a block, and 1 is left: no room for place 0's context of 3.
    assert [(r.index, c) for r, c in made.batch] == [(1, 1)]
    assert queue[0].kept == 2 and made.saved_tokens == 2 and made.moving_s == 0.5


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

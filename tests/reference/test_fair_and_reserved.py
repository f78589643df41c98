"""FairBatching, VTC and Llumnix; cases worked by hand, set in scenes.py."""

from .engines import Engine
from .requests import Request
from .scenes import formed, row, served, state
from .schedulers.fairbatching import FairBatching
from .schedulers.llumnix import LlumnixReserve
from .schedulers.vtc import WeightedVtc


def decode(remain_s: float) -> Request:
    return state(3, 1, 3, ttft_slo_s=remain_s - 1, tpot_slo_s=1)


def fair(near: float, now_s: float = 0.0, eta: float = 0.5) -> list[tuple[int, int]]:
    """Decodes with deadlines 4 and 9, and between them a prompt of 3 with deadline 10."""
    queue = decode(4), state(3, ttft_slo_s=10), decode(9)
    return formed(FairBatching(near, eta), *queue, now_s=now_s)[0]


def test_fairbatching():
    # t_min 4: 4 >= 1 + 1. Near below 8: place 0 is. 1 + 1 s, then 2 tokens of the prompt.
    assert fair(near=2) == [(0, 1), (1, 2)]
    # Below 9 is not 9; below 12 both are.
    assert fair(near=2.25) == [(0, 1), (1, 2)]
    assert fair(near=3) == [(0, 1), (2, 1), (1, 1)]
    # Near 0: the prompt first, and 1 + 3 s are all.
    assert fair(near=0) == [(1, 3)]
    # At 5 place 0 is late, and so near; place 2 (4 s) and the prompt (5 >= 3 + 1) can make it: again 4 s.
    assert fair(near=0, now_s=5) == [(0, 1), (1, 2)]


def test_fairbatching_least_time():
    assert fair(near=2, eta=5) == [(0, 1), (2, 1), (1, 2)]  # near below 10
    # At 20 all are hopeless: eta.
    assert fair(near=2, now_s=20, eta=2) == [(0, 1)]


def test_llumnix():
    # Prompts of high priority (0) first, then others; then, in a batch of their own, decodes.
    queue = state(3, 1, 3), state(4, priority=1), state(5, priority=0), state(2, priority=1, arrival_s=-1.0)
    assert formed(LlumnixReserve(), *queue)[0] == [(2, 5), (3, 2), (1, 4)]
    queue = state(3, 1, 3, priority=1), state(3, 1, 3, priority=0)
    assert formed(LlumnixReserve(), *queue)[0] == [(1, 1), (0, 1)]


def test_llumnix_reserve():
    def batch(second: int, priority: int, reserve: float = 0.25) -> list[tuple[int, int]]:
        """Beside a prompt of 5, of 20 blocks."""
        queue = state(5, priority=0), state(second, priority=priority)
        return formed(LlumnixReserve(reserve=reserve), *queue, blocks=20)[0]

    assert batch(15, 0) == [(0, 5), (1, 15)]
    assert batch(10, 1) == [(0, 5), (1, 10)] and batch(11, 1) == [(0, 5)]
    assert batch(10, 1, 0.29) == [(0, 5), (1, 10)] and batch(10, 1, 0.3) == [(0, 5)]  # 5.8 and 6 blocks
    # Alone there is none.
    assert formed(LlumnixReserve(reserve=1), state(20, priority=3), blocks=20)[0] == [(0, 20)]


def order(*queue: Request, **more: object) -> list[int]:
    return [place for place, _ in formed(WeightedVtc(max_num_batched_tokens=512), *queue, **more)[0]]


def test_vtc_tags():
    # Client 0: tags 0 and 4; client 1: 0 and 3.
    queue = state(4), state(2), state(3, client=1), state(9, client=1)
    assert order(*queue) == [0, 2, 3, 1]
    # Client 0 at weight 2: 0 and 2. What counts is the weight of its first request.
    queue = state(4, weight=2.0), state(2, weight=50.0), state(3, client=1), state(9, client=1)
    assert order(*queue) == [0, 2, 1, 3]
    # A prompt that was admitted once is charged already: tags 0, 0 and 0, 3.
    queue = state(4, evicted=1, admitted=1), state(2), state(3, client=1), state(9, client=1)
    assert order(*queue) == [0, 1, 2, 3]
    # Decodes, then running requests, then waiting ones.
    assert order(state(1), state(5, 0, 2), state(3, 1, 3)) == [2, 1, 0]


def test_vtc_charges():
    # Client 0 was served 5 tokens in, 3 out: 5 + 2 x 3 = 11, client 1 12 and 0.
    def before(engine: Engine) -> None:
        engine.by_client[0].admitted_prompt_tokens, engine.by_client[0].num_output_tokens = 5, 3
        engine.by_client[1].admitted_prompt_tokens = 12

    assert order(state(4, client=1), state(2), before=before) == [1, 0]
    # At weight 2 client 1 has 6.
    assert order(state(4, client=1, weight=2.0), state(2), before=before) == [0, 1]


def test_vtc_lifts_clients_that_return():
    # One at a time. At 5 client 0 has 4 + 2 = 6; nobody was left waiting, so r1 and client 1 start at the counter of
    # the last one, 6: r1 is earlier (not lifted, client 1 would go first). At 8 r2, tag 6. At 12 client 1 has
    # 6 + 3 + 2 = 11 and was left waiting with r3; client 0 has 10, returns with r4, and is lifted to 11: r3 is earlier.
    rows = [
        row(4, 1),
        row(2, 1, 1.0),
        row(3, 1, 2.0, client=1),
        row(1, 1, 2.0, client=1),
        row(1, 1, 9.0),
    ]
    log = served(rows, WeightedVtc(max_num_batched_tokens=512, max_num_seqs=1))
    assert log.finish_s == [5, 8, 12, 14, 16]

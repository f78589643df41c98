"""QoServe and Medha; cases worked by hand, set in scenes.py."""

from typing import Any

from .engines import Engine
from .requests import Request
from .scenes import formed, state
from .schedulers.qoserve import Medha, Qoserve


def decode(remain_s: float, **more: Any) -> Request:
    return state(3, 1, 3, ttft_slo_s=remain_s - 6, tpot_slo_s=6, **more)


def test_medha():
    # 6 s / 1.5: 1 + 2 decodes + 1 token.
    options = {"tbt_s": 6, "safety": 1.5}
    assert formed(Medha(**options), decode(50), decode(50), state(9))[0] == [(0, 1), (1, 1), (2, 1)]
    # Decodes need no time; then there is none left.
    assert formed(Medha(**options), *(decode(50) for _ in range(5)), state(9))[0] == [(i, 1) for i in range(5)]
    # Prefill tokens of a batch: 2, whatever the decodes are.
    options = {"tbt_s": 60, "largest_chunk_tokens": 2}
    assert formed(Medha(**options), decode(50), decode(50), state(9))[0] == [(0, 1), (1, 1), (2, 2)]


def batch(*queue: Request, now_s: float = 0.0, **options: Any) -> list[tuple[int, int]]:
    return formed(Qoserve(**{"safety": 1.5, **options}), *queue, now_s=now_s)[0]


def test_dynamic_chunking():
    # Slack 6, 4 s: 1 + 1 + 2 tokens. No decode: all of the prompt; at most so many.
    assert batch(decode(6), state(9)) == [(0, 1), (1, 2)]
    assert batch(decode(7.5), decode(6), state(9)) == [(0, 1), (1, 1), (2, 1)]
    assert batch(state(9)) == [(0, 9)] and batch(state(9), largest_chunk_tokens=5) == [(0, 5)]
    assert batch(decode(600), state(9), largest_chunk_tokens=5) == [(0, 1), (1, 5)]
    # At least 3.
    assert batch(decode(6), state(9), least_chunk_tokens=3) == [(0, 1), (1, 3)]
    assert batch(decode(6), state(9), dynamic_chunking="off", max_num_batched_tokens=8) == [(0, 1), (1, 7)]


def test_slack_of_late_decodes():
    # 7 s late is more than a TPOT SLO of 6: that is the slack. With a limit of 2 it is negative.
    assert batch(decode(7), state(9), now_s=14) == [(0, 1), (1, 2)]
    assert batch(decode(7), state(9), now_s=14, late_limit=2) == [(0, 1)]
    assert batch(decode(7), state(9), now_s=13) == [(0, 1)]


def test_slack_of_ttlt_decodes():
    def history(engine: Engine) -> None:
        engine.by_application[0].outputs = [4, 6]  # 5 + 2 x 1, of which 1 is out: 6 to come

    def chunk(**options: Any) -> list[tuple[int, int]]:
        scheduler = Qoserve(safety=1.5, **options)
        return formed(scheduler, decode(99, ttlt_slo_s=36.0), state(9), before=history)[0]

    assert chunk() == [(0, 1), (1, 9)]
    assert chunk(ttlt_slack="paced") == [(0, 1), (1, 2)]  # 36 / 6


def test_chunks_of_the_code():
    # 1.2 x (1 + 1 + 127) = 154.8 <= 200 < 1.2 x (1 + 1 + 255).
    assert batch(decode(200), state(400), dynamic_chunking="code") == [(0, 1), (1, 127)]
    assert batch(decode(150), state(400), dynamic_chunking="code") == [(0, 1), (1, 127)]  # none fits: 128
    assert batch(decode(310), state(400), dynamic_chunking="code") == [(0, 1), (1, 255)]
    options = {"dynamic_chunking": "code"}
    assert formed(Qoserve(**options), state(3000), blocks=4000)[0] == [(0, 2552)]
    assert formed(Qoserve(**options), state(4100, 0, 3500), blocks=4200)[0] == [(0, 512)]  # 700 are free


UNCHUNKED = {"dynamic_chunking": "off", "max_num_batched_tokens": 100}


def test_hybrid_order():
    def order(**options: Any) -> list[int]:
        # Deadlines 20 and 22, 5 and 2 tokens: 25 and 24 at 1 s a token.
        return [r for r, _ in batch(state(5, ttft_slo_s=20), state(2, ttft_slo_s=22), **UNCHUNKED, **options)]

    assert order(alpha_s_per_token=1) == [1, 0]
    assert order(alpha_s_per_token=0) == [0, 1]
    # 7 tokens wait.
    low = {"alpha_s_per_token": 1, "low_load_alpha_s_per_token": 0}
    assert order(**low, low_load_tokens=8) == [0, 1] and order(**low, low_load_tokens=7) == [1, 0]


def test_hybrid_order_of_ttlt_requests():
    def history(engine: Engine) -> None:
        engine.by_application[0].outputs = [4, 6]

    # 20 + 5 + 7 against 30 + 2, the later arrival first by its place; then 30 + 1.
    for prompt, order in ((2, [0, 1]), (1, [1, 0])):
        queue = state(5, ttlt_slo_s=20), state(prompt, ttft_slo_s=30)
        scheduler = Qoserve(alpha_s_per_token=1, **UNCHUNKED)
        assert [r for r, _ in formed(scheduler, *queue, before=history)[0]] == order


def test_relegation():
    # The first would end at 1 + 5 = 6, its deadline: late. At 6.5 it is not.
    assert batch(state(5, ttft_slo_s=6), state(3), **UNCHUNKED) == [(1, 3), (0, 5)]
    assert batch(state(5, ttft_slo_s=6.5), state(3), **UNCHUNKED) == [(0, 5), (1, 3)]
    assert batch(state(5, ttft_slo_s=6), state(3), **UNCHUNKED, relegation="off") == [(0, 5), (1, 3)]
    # Relegated ones among themselves by deadline (alpha 0), or less important ones first.
    late = [{"ttft_slo_s": 1, "priority": 0}, {"ttft_slo_s": 2, "priority": 1}]
    options = {**UNCHUNKED, "alpha_s_per_token": 0}
    assert batch(*(state(2, **r) for r in late), state(3), **options) == [(2, 3), (0, 2), (1, 2)]
    assert batch(*(state(2, **r) for r in late), state(3), **options, relegated_order="low-first")[1:] == [
        (1, 2),
        (0, 2),
    ]


def test_relegation_is_for_good():
    scheduler = Qoserve(**UNCHUNKED)
    first, other = state(5, ttft_slo_s=6), state(3)
    assert formed(scheduler, first, other)[0] == [(1, 3), (0, 5)]
    # With 5 of its 5 tokens computed but one it would no longer be late.
    first.computed = first.blocks = 4
    other.computed = other.blocks = 0
    decision = scheduler.decide(Engine(0, 1, 1000, 0, [first, other]), 0.0)
    assert [rank[0] for rank in decision.ranks] == [3, 2]


def test_low_importance_goes_first():
    def order(importance: str) -> list[int]:
        # Place 0 is late. Place 1, behind it, is as important; place 2 is less so.
        queue = state(5, ttft_slo_s=6), state(3, ttft_slo_s=100), state(2, ttft_slo_s=90, priority=1)
        return [r for r, _ in batch(*queue, **UNCHUNKED, alpha_s_per_token=0, importance=importance)]

    assert order("low-first") == [1, 0, 2]  # places 0 and 2 are relegated
    assert order("ignore") == [2, 1, 0]
    assert order("spare") == [0, 2, 1]


def test_relegation_of_the_code():
    def order(now_s: float, **more: Any) -> list[int]:
        def history(engine: Engine) -> None:
            engine.iterations, engine.computed_tokens, engine.busy_s = 1, 10, 20.0  # 2 s a token

        queue = state(5, ttft_slo_s=12, **more), state(3, ttft_slo_s=100)
        scheduler = Qoserve(relegation="code", alpha_s_per_token=0, **UNCHUNKED)
        return [r for r, _ in formed(scheduler, *queue, before=history, now_s=now_s)[0]]

    assert order(2.0) == [0, 1] and order(2.5) == [1, 0]  # 2 + 10 > 12 is false
    assert order(2.5, admitted=1) == [1, 0]


def test_selective_preemption():
    def first(deadline_s: float, **options: Any) -> int:
        # Of a prompt of 9 4 are computed: it needs 1 + 5 s, a batch of 4 tokens lasts 5 s. Another is due at 3.
        queue = state(9, 0, 4, ttft_slo_s=deadline_s), state(4, ttft_slo_s=3)
        settings = {"dynamic_chunking": "off", "max_num_batched_tokens": 4, "relegation": "off", "alpha_s_per_token": 0}
        return batch(*queue, **settings, **options)[0][0]

    # It can wait until 5 + 6 s before its deadline, and must no more be helped from 6 s on.
    assert [first(d) for d in (11.5, 11, 6.5, 6)] == [1, 0, 0, 1]
    assert first(11, selective_preemption="off") == 1

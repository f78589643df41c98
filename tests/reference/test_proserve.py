"""The schedulers of docs/systems/proserve.md; cases worked by hand, set in scenes.py."""

from typing import Any

from .requests import Request
from .scenes import SECONDS, formed, state
from .schedulers.proserve import Edf, Sjf, SlideBatching


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
    assert formed(Edf(max_num_batched_tokens=4), *queue())[0] == [(2, 1), (1, 3)]
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
    assert slide(ablation="no-latency", max_num_batched_tokens=8) == [(a, 4), (c, 3), (b, 1)]


def test_slide_batching_hopeless():
    def batch(**options: Any) -> list[tuple[int, int]]:
        # D cannot make it: remain 2 < 5 + 1. C can: 8 >= 3 + 1. Densities 1/5 and 1/3.
        return formed(SlideBatching(**options), state(5, ttft_slo_s=2), state(3, ttft_slo_s=8))[0]

    # Excluded: t_budget 8, phi 8 / 7 x 8: both urgent; C's 3, then 4 of D up to 8 seconds.
    assert batch(eta=1, hopeless="exclude") == [(1, 3), (0, 4)]
    # Included: t_budget 2, room for 1 token of C.
    assert batch(eta=1) == [(1, 1)]
    # remain = exec + t_c can still make it: t_budget 6.
    exclude = SlideBatching(eta=1, hopeless="exclude")
    assert formed(exclude, state(9, ttft_slo_s=6), state(5, ttft_slo_s=6))[0] == [(1, 5)]


def test_slide_batching_without_hope_or_time():
    # None can make it: t_budget = eta = 3, so 2 tokens.
    assert formed(SlideBatching(eta=3), state(5, ttft_slo_s=2))[0] == [(0, 2)]
    # eta 0.5 <= t_c: all are urgent, by density (1/5, 100/50) place 1 is first; none fits: it runs 1 token.
    hopeless = state(5, ttft_slo_s=2), state(50, ttft_slo_s=40, first_token_gain=100)
    assert formed(SlideBatching(eta=0.5, hopeless="exclude"), *hopeless)[0] == [(1, 1)]
    # Under phi p: 55 + 2 x 1 = 57, times 0.1 is 5.7: only place 0 is urgent.
    hopeless = state(5, ttft_slo_s=2), state(50, ttft_slo_s=40, first_token_gain=100)
    assert formed(SlideBatching(eta=0.5, phi="p", gamma=0.1, hopeless="exclude"), *hopeless)[0] == [(0, 1)]


def test_slide_batching_eta_by_default():
    for scheduler, share in ((SlideBatching(), 0.9), (SlideBatching(xllm=True, hopeless="include"), 0.65)):
        late = state(5, tpot_slo_s=20), state(5, tpot_slo_s=40)
        scheduler.prepare(list(late), SECONDS)
        assert scheduler.t_budget(list(late), 2000.0) == share * 20


def test_slide_batching_deadlines():
    def remains(**options: Any) -> list[float]:
        early, late = (state(3, 2, 4, ttft_slo_s=10, tpot_slo_s=4) for _ in range(2))
        early.emission_s, late.emission_s = [2.0, 3.0], [13.0, 15.0]
        queue = early, late, state(3, ttft_slo_s=10), state(3, 1, 3, ttlt_slo_s=30)
        queue[-1].emission_s = [2.0]
        scheduler = SlideBatching(**options)
        return [scheduler.remain(r, 1.0) for r in queue]

    # The third token: 10, or 2, or 13, + 2 x 4, less 1.
    assert remains() == [17, 17, 9, 29]
    assert remains(deadlines="early-first-token") == [9, 17, 9, 29]
    assert remains(deadlines="first-token") == remains(xllm=True) == [9, 20, 9, 29]


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

    # Two that are starved go by remain, here -9 and -8; by density the second would be ahead.
    starved = state(8, ttft_slo_s=1), state(2, ttft_slo_s=1, arrival_s=1)
    assert formed(SlideBatching(eta=100, xllm=True, hopeless="include"), *starved, now_s=10)[0] == [(0, 8), (1, 2)]
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
    assert formed(SlideBatching(eta=41, xllm=True, hopeless="include"), *queue())[0] == [(1, 10)]
    # 1 + 10 + 51 = 62.
    assert formed(SlideBatching(eta=62, xllm=True, hopeless="include"), *queue())[0] == [(1, 10), (0, 51)]
    # None can make it, and they set no budget: there is none.
    assert formed(SlideBatching(eta=41, xllm=True), *queue())[0] == [(1, 10), (0, 100), (2, 5)]

"""The schedulers of docs/systems/sarathi.md; cases worked by hand, set in scenes.py."""

from .latency import Linear
from .scenes import SECONDS, formed, state
from .schedulers.sarathi import SarathiEdf, SarathiFcfs, SarathiPriority, SarathiSjf, SarathiSrpf


def test_sarathi():
    queue = [state(4, priority=1), state(5, priority=0), state(3, 1, 3, priority=1, arrival_s=1.0)]
    assert formed(SarathiFcfs(7), *queue)[0] == [(2, 1), (0, 4), (1, 2)]
    queue = [state(4, priority=1), state(5, priority=0), state(3, 1, 3, priority=1, arrival_s=1.0)]
    assert formed(SarathiPriority(7), *queue)[0] == [(2, 1), (1, 5), (0, 1)]


def test_orders_of_prefills():
    def order(scheduler: SarathiFcfs) -> list[int]:
        # Left 4, 2, 3, 3 and a decode; prompts 4, 9, 3, 1; first deadlines 20, 10, 5 (TTLT), 8.
        queue = [
            state(4, ttft_slo_s=20),
            state(9, 0, 7, ttft_slo_s=10),
            state(3, ttft_slo_s=99, ttlt_slo_s=5),
            state(1, 2, ttft_slo_s=8),  # lost its memory after two tokens
            state(3, 1, 3, ttft_slo_s=500),
        ]
        return [place for place, _ in formed(scheduler, *queue)[0]]

    assert order(SarathiEdf(512)) == [4, 2, 3, 1, 0]
    assert order(SarathiSrpf(512)) == [4, 1, 2, 3, 0]
    assert order(SarathiSjf(512)) == [4, 3, 2, 0, 1]


def test_sarathi_profiled_budget():
    def budget(tpot_slo_s: float, latency: Linear) -> float:
        scheduler = SarathiFcfs()
        # Mean prompt 8, so 4 are cached.
        scheduler.prepare([state(4, tpot_slo_s=tpot_slo_s), state(12, tpot_slo_s=99)], latency)
        return scheduler.limits([], 0).max_num_batched_tokens

    assert budget(50, SECONDS) == 48  # 1 + 48 <= 50 < 1 + 64
    assert budget(49, SECONDS) == 48  # 1 + 48 <= 49: within
    assert budget(3, SECONDS) == 16  # at least 16
    assert budget(70, Linear(0, 0.25, 1, 0, 1, 1)) == 32  # 1 + 32 + 0.25 x 32 x 4 = 65 <= 70 < 1 + 48 x 2

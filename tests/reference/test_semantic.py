"""Semantic scheduling; cases worked by hand, set in scenes.py."""

import math
from typing import Any

from .engines import Engine, HostMemory
from .latency import Linear
from .requests import Request
from .scenes import formed, row, served, state
from .schedulers.semantic import Hpjf, Semantic, Slots, SlotsSjf

SLOPE = Linear(a_p=0, b_p=0, c_p=1, a_d=0.1, b_d=1, t_c=1)  # decode_s(x) = 2 + x / 10, prefill_s(q, x) = 1 + q


def remaining_s(r: Request, host: HostMemory | None = None) -> float:
    scheduler = Semantic()
    scheduler.prepare([r], SLOPE)
    return scheduler.remaining_s(r, Engine(0, 1, 1000, 0, [r], host or HostMemory()))


def test_remaining_time():
    # Prefill of 4: 5 s; two more tokens with 4 and 5 before them: 2 x (2 + 4.5 / 10).
    assert remaining_s(state(4, predicted_output_tokens=3.0)) == 5 + 4.9
    assert remaining_s(state(4, predicted_output_tokens=0.5)) == 5  # at least 1 to come
    assert remaining_s(state(4)) == math.inf
    # Decoding: 2 tokens of 5 are out, 5 of 6 computed: 3 x (2 + 6 / 10).
    assert math.isclose(remaining_s(state(4, 2, 5, predicted_output_tokens=5.0)), 7.8)
    # It lost its memory: context 6, 2 kept: 2 x 0.5 s to load, 1 + 4 s, then 2 x (2 + 6.5 / 10).
    lost = state(4, 2, predicted_output_tokens=5.0)
    lost.kept = 2
    assert math.isclose(remaining_s(lost, HostMemory(9, 0.5, 0.5)), 1 + 5 + 5.3)


def queue() -> list[Request]:
    """Remaining 3 + 2 x 2, 5 + 8 x 2 and 4 + 2 s."""
    return [
        state(2, predicted_output_tokens=3.0, urgency=1, priority=0, arrival_s=0.0),
        state(4, predicted_output_tokens=9.0, urgency=0, priority=1, arrival_s=1.0),
        state(3, predicted_output_tokens=2.0, urgency=0, priority=1, arrival_s=2.0),
    ]


def test_orders():
    assert formed(Semantic(), *queue())[0] == [(2, 3), (1, 4), (0, 2)]
    assert formed(Semantic(slots=2), *queue())[0] == [(2, 3), (1, 4)]
    assert formed(Semantic(level="priority"), *queue())[0] == [(0, 2), (2, 3), (1, 4)]
    assert formed(Hpjf(), *queue())[0] == [(0, 2), (1, 4), (2, 3)]
    assert formed(Hpjf(level="urgency"), *queue())[0] == [(1, 4), (2, 3), (0, 2)]
    assert formed(Slots(), *queue())[0] == [(0, 2), (1, 4), (2, 3)]
    assert formed(SlotsSjf(), *queue())[0] == [(2, 3), (0, 2), (1, 4)]


def test_stages():
    def batch(*levels: int, **options: Any) -> list[tuple[int, int]]:
        """Decode, prompt of 4, decode: with these levels."""
        three = state(3, 1, 3), state(4), state(3, 1, 3)
        for r, level in zip(three, levels, strict=True):
            r.priority = level
        return formed(Hpjf(**options), *three)[0]

    # A prompt is first: it runs alone. A decode is: prompts wait.
    assert batch(1, 0, 2) == [(1, 4)]
    assert batch(0, 1, 2) == [(0, 1), (2, 1)]
    assert batch(0, 1, 2, batching="prefill-first") == [(1, 4)]
    # Two slots: the candidates are the decode and the prompt, or the two best decodes.
    assert batch(0, 1, 2, slots=2) == [(0, 1)]
    assert batch(0, 1, 2, slots=2, candidates="decodes") == [(0, 1), (2, 1)]
    # The prompt is not among the first two, which decode.
    assert batch(0, 2, 1, slots=2, batching="prefill-first") == [(0, 1), (2, 1)]


def test_ongoing_requests_are_merged_with_the_candidates():
    # Two slots; r0 and r1 (level 1) are decoding when r2 and r3 (level 0) come at 5. 0 to 5: 2 + 2 tokens. 5 to 9: the
    # prompts of r2 and r3 go first, with all slots. At 9 r2 and r3 decode, r0 and r1 are not ongoing, but are
    # candidates, and there is no slot for them until r2 (at 12) and r3 end.
    rows = [row(2, 2, priority=1), row(2, 2, priority=1), row(2, 2, 5.0), row(1, 3, 5.0)]
    log = served(rows, Hpjf(slots=2))
    assert [i.batch for i in log.iterations] == [
        [(0, 2), (1, 2)],
        [(2, 2), (3, 1)],
        [(2, 1), (3, 1)],
        [(3, 1), (0, 1)],
        [(1, 1)],
    ]


def test_remaining_time_stays_until_an_eviction():
    # Both decode; predicted 9 and 8 tokens, of which 1 is out: 8 and 7 steps of 2 s. Then the first goes on alone with
    # 4 more, so that it would have less to come, but its number stays.
    scheduler, current = SlotsSjf(slots=2), SlotsSjf(slots=2, remaining_time="current")
    for policy, order in ((scheduler, [1, 0]), (current, [0, 1])):
        long, short = state(3, 1, 3, predicted_output_tokens=9.0), state(3, 1, 3, predicted_output_tokens=8.0)
        assert formed(policy, long, short)[0] == [(1, 1), (0, 1)]
        long.emitted, long.computed, long.blocks = 5, 7, 7
        engine = Engine(0, 1, 1000, 0, [long, short])
        policy.decide(engine, 0.0)
        assert [r.index for r in sorted(engine.queue, key=policy.order)] == order
        # After an eviction: 4 tokens to come, the first with a prefill of 8 (9 + 3 x 2 s): more than 14 s.
        long.computed = long.blocks = 0
        long.evicted = 1
        policy.decide(engine, 0.0)
        assert policy.times[long.index][1] == 9 + 6


def keep(computed: int, load_s: float, save_s: float, host_blocks: int = 100, **options: Any) -> int:
    r = state(4, 9, computed)  # a prompt of 4
    scheduler = Semantic(**options)
    scheduler.prepare([r], SLOPE)
    scheduler.engine = Engine(0, 1, 1000, 0, [r], HostMemory(host_blocks, load_s, save_s))
    return scheduler.keep_tokens([r])[0]


def test_keep_or_recompute():
    # n = 4, m = 3: the prompt is recomputed in 1 + 4 s, the decoded ones in 2 + 6 / 10 s each.
    assert keep(7, 0.5, 0.25) == 7
    assert keep(7, 1.5, 0.5) == 3  # 4 x 2 > 5
    assert keep(7, 2.5, 0.5) == 0
    assert keep(7, 1.0, 1.0) == 3 and keep(7, 1.0, 1.0, transfer_cost="load") == 7
    assert keep(3, 0.5, 0.25) == 3 and keep(3, 1.5, 0.0) == 0  # of the prompt alone: 3 x 1.5 > 4
    assert keep(7, 0.5, 0.25, host_blocks=0) == 0
    # As one prefill of 7: 8 s.
    assert keep(7, 1.0, 0.1, accounting="prefill") == 7  # 7.7
    assert keep(7, 1.0, 0.2, accounting="prefill") == 0  # 8.4


def test_keep_as_printed():
    # The wrong way round: the prompt is kept if 4 beta > 5. Decoded: (beta - 2.45) / 0.2 tokens, rounded down.
    assert keep(7, 1.0, 0.0, accounting="as-printed") == 0
    assert keep(7, 2.0, 0.0, accounting="as-printed") == 4
    assert keep(7, 3.0, 0.0, accounting="as-printed") == 4 + 2
    assert keep(7, 4.0, 0.0, accounting="as-printed") == 4 + 3

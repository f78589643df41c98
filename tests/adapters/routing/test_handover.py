"""From one live router to the next: what is known stays known."""

import numpy as np
import pytest

from servegym.adapters.routing.handover import hand_over
from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.rows import RequestTerms
from servegym.baselines.registry import router
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.records.types import HOLD

KNOWN = (
    "up", "closed", "requests", "prefills", "prefill_tokens", "decodes", "decode_tokens", "total_blocks", "finished",
)  # fmt: skip


def live(policy: str, engines: int, prefix_cache_tokens: int = 0, adapters: Adapters | None = None) -> LiveRouter:
    estimator = load_profile("h100-llama3-8b").estimator
    return LiveRouter(
        router(policy),
        [
            LiveEngine(str(e), estimator, 1000, prefix_cache_tokens=prefix_cache_tokens, adapters=adapters)
            for e in range(engines)
        ],
        (0.05,),
    )


def asked(tokens: int = 100, adapter: int = 0) -> RequestTerms:
    return RequestTerms(tokens, 1.0, 0.05, adapter=adapter)


@pytest.fixture
def busy() -> tuple[LiveRouter, list[int]]:
    """Two engines with six requests, of which three have tokens and one has finished."""
    before = live("min-load", 2)
    rows = [before.arrive(0.1 * k, asked(100 + k)) for k in range(6)]
    for k, r in enumerate(rows):
        before.route(0.1 * k, r)
        if k < 4:
            before.token(0.6, r, k + 1)
    before.leave(0.7, rows[0], finished=True)
    before.set_memory(1, 500, 32)
    before.report(1, free_blocks=123)
    return before, rows


def test_all_that_is_under_way_is_handed_over(busy: tuple[LiveRouter, list[int]]) -> None:
    before, rows = busy
    expected = {name: before.snapshots[name].copy() for name in KNOWN}
    first_s, emitted = before.rows.first_token_s.copy(), before.rows.emitted.copy()
    after = live("gorouting", 3)
    hand_over(before, after, 1.0)
    for name, values in expected.items():
        assert after.snapshots[name][:2].tolist() == values.tolist(), name
    np.testing.assert_array_equal(after.rows.first_token_s, first_s)
    np.testing.assert_array_equal(after.rows.emitted, emitted)
    assert (after.snapshots[1]["free_blocks"], after.snapshots[1]["block_tokens"]) == (123, 32)
    assert not after.is_open(2), "one more engine is closed until it is well"
    for r in rows[1:]:
        after.leave(2.0, r, finished=True)
    for name in ("requests", "prefills", "prefill_tokens", "decodes", "decode_tokens"):
        assert not after.snapshots[name].any(), name
    assert after.rows.used == 0


def test_the_same_policy_decides_as_if_nothing_had_been(busy: tuple[LiveRouter, list[int]]) -> None:
    """Half of two equal routers is handed over; then both are told of the same."""
    one, other = (live("kv-aware", 2, 10_000) for _ in range(2))
    rng = np.random.default_rng(0)
    went: list[list[int]] = [[], []]
    for k in range(40):
        chunks = [int(rng.integers(4)) + 10 * j for j in range(4)]
        if k == 20:
            after = live("kv-aware", 2, 10_000)
            hand_over(other, after, 2.0)
            other = after
        for side, router_ in enumerate((one, other)):
            r = router_.arrive(0.1 * k, asked(), chunks)
            went[side].append(router_.route(0.1 * k, r))
            if k % 3 == 0:
                router_.token(0.1 * k, r, 2)
            if k % 4 == 0:
                router_.leave(0.1 * k, r, finished=True)
    assert went[0] == went[1] and set(went[0]) == {0, 1}


def test_those_held_go_when_there_is_an_engine() -> None:
    before = live("min-load", 1)
    before.set_open(0, up=False)
    rows = [before.arrive(0.1 * k, asked()) for k in range(3)]
    assert [before.route(0.5, r) for r in rows] == [HOLD] * 3
    after = live("round-robin", 2)
    hand_over(before, after, 1.0)
    assert after.held == 3 and after.ask_again(1.0) == []
    after.set_open(1, up=True)
    assert after.ask_again(1.1) == [(r, 1) for r in rows], "in the order in which they came"


def test_another_engine_in_a_place_begins_with_nothing() -> None:
    before = live("kv-aware", 2, 10_000)
    chunks = list(range(6))
    for _ in range(4):
        r = before.arrive(0.0, asked(), chunks)
        before.send(0.0, r, 1)
        before.leave(0.0, r, finished=True)
    after = live("kv-aware", 2, 10_000)
    hand_over(before, after, 1.0, fresh={1})
    assert not after.known.prefixes.sent["used"][1].any() and after.snapshots["finished"].tolist() == [0, 0]
    assert not after.is_open(1) and after.is_open(0)


def test_adapters_stay_where_they_are() -> None:
    """Also more than were assumed, as an engine has reported; and those of requests that are still there."""
    before, after = (live("lora-affinity", 3, adapters=Adapters(2, 0.5, 0.01)) for _ in range(2))
    for adapter in (4, 5, 6):
        r = before.arrive(0.0, asked(adapter=adapter))
        before.send(0.0, r, 1)
        if adapter == 4:
            before.leave(0.0, r, finished=True)
    before.report_adapters(0, [7, 8], [9], 3)
    hand_over(before, after, 1.0, fresh={2})
    assert after.known.adapters.tolist() == [[8, 7, 9], [6, 5, 0], [0, 0, 0]]
    assert after.snapshots["max_loras"].tolist() == [3, 2, 2]

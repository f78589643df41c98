"""A live router by itself: what it refuses, policies that misbehave, and engines that come and go."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.rows import RequestTerms
from servegym.baselines.registry import router, scheduler
from servegym.errors import RoutingError
from servegym.latency_models.profile import load_profile
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.signatures import router as compiled_router
from servegym.simulator.records.types import HOLD, REFUSE
from tests.simulator.forming import linear

MODEL = linear(c_p=2**-12, b_d=2**-10, t_c=2**-7)
ASKED = RequestTerms(100, 1.0, 0.05)


def live(policy: Policy | str = "min-load", engines: int = 2, **more: object) -> LiveRouter:
    chosen = router(policy) if isinstance(policy, str) else policy
    return LiveRouter(chosen, [LiveEngine(str(e), MODEL, 100) for e in range(engines)], (0.05,), **more)  # type: ignore[arg-type]


@compiled_router
def nowhere(context, request, route):
    """Names an engine that there is not, or a held queue that there is not."""
    route.engine = 99 if request % 2 == 0 else HOLD
    route.held_queue = -7


@compiled_router
def never(context, request, route):
    """Holds everything."""
    route.engine = HOLD


@compiled_router
def alone(context, request, route):
    """Engine 0 while it has nothing to do, else it holds the request."""
    known = context.known
    route.engine = 0 if known.snapshots[0].requests == 0 else HOLD


@compiled_router
def gives_up(context, request, route):
    """Engine 0 while it has nothing to do, else it holds the request; refuses all from 1 s on, also with tokens."""
    known = context.known
    if context.now_s >= 1.0:
        route.engine = REFUSE
    else:
        route.engine = 0 if known.snapshots[0].requests == 0 else HOLD


def of(function: object) -> Policy:
    return Policy("made-up", "router", "", "", function)  # type: ignore[arg-type]


def test_what_cannot_be_a_live_router() -> None:
    with pytest.raises(RoutingError, match="edf is a scheduler; requests are routed by a router"):
        live(scheduler("edf"))
    with pytest.raises(RoutingError, match="no engines"):
        live(engines=0)
    with pytest.raises(RoutingError, match="5 estimators; there should be at most 4"):
        LiveRouter(router("min-load"), [LiveEngine("", linear(c_p=1.0 + e), 9) for e in range(5)])
    with pytest.raises(RoutingError, match="depend on min_tpot_slo_s"):
        LiveRouter(router("gorouting"), [LiveEngine("", MODEL, 9)])
    for tiers in ((0.1, 0.05), (0.0,), (math.nan,), tuple(np.arange(1, 10) / 10)):
        with pytest.raises(RoutingError, match="at most 8 TPOT SLOs in s, ascending"):
            LiveRouter(router("min-load"), [LiveEngine("", MODEL, 9)], tiers)


def test_a_policy_that_names_no_engine_is_overruled_and_counted() -> None:
    one = live(of(nowhere))
    rows = [one.arrive(0.0, ASKED) for _ in range(4)]
    assert [one.route(0.0, r) for r in rows] == [0, 1, 0, 1], "where fewest requests are"
    assert one.fallbacks == 4


def test_a_policy_that_raises_is_overruled_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    one = live()

    def fails(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(one, "_decide", fails)
    assert one.route(0.0, one.arrive(0.0, ASKED)) == 0
    assert one.fallbacks == 1


def test_held_requests_go_in_their_order_and_can_be_given_up() -> None:
    one = live(of(alone))
    rows = [one.arrive(0.0, ASKED) for _ in range(4)]
    assert [one.route(0.0, r) for r in rows] == [0, HOLD, HOLD, HOLD] and one.held == 3
    assert one.known.tiers["waiting"].tolist() == [3, 0, 0]
    one.leave(1.0, rows[1], finished=False)
    assert one.ask_again(1.0) == [], "nothing has changed at the engine"
    one.token(1.0, rows[0])
    one.leave(2.0, rows[0], finished=True)
    assert one.ask_again(2.0) == [(rows[2], 0)]
    assert one.ask_again(2.0) == [] and one.held == 1
    assert one.snapshots[0].finished == 1 and one.snapshots[0].finished_tokens == 1


def test_requests_are_refused_at_once_or_while_they_are_held() -> None:
    one = live(of(gives_up))
    rows = [one.arrive(0.0, ASKED) for _ in range(3)]
    assert [one.route(0.0, r) for r in rows] == [0, HOLD, HOLD]
    one.token(1.0, rows[0])
    assert one.ask_again(1.0) == [(rows[1], REFUSE), (rows[2], REFUSE)]
    assert one.held == 0 and one.known.tiers["waiting"].tolist() == [0, 0, 0]
    assert one.route(1.0, one.arrive(1.0, ASKED)) == REFUSE
    assert one.snapshots["requests"].tolist() == [1, 0] and one.fallbacks == 0
    one.recall(1.0, rows[0])
    assert one.route(1.0, rows[0]) in (0, 1), "its client has a token"
    assert one.fallbacks == 1


def test_engines_that_must_not_be_tried_again_and_none_at_all() -> None:
    one = live()
    r = one.arrive(0.0, ASKED)
    assert one.route(0.0, r, {0}) == 1
    one.recall(1.0, r)
    assert one.route(1.0, r, {1}) == 0
    one.set_open(0, up=False)
    one.set_open(1, up=True, closed=True)
    other = one.arrive(1.0, ASKED)
    assert one.route(1.0, other) == HOLD
    version = int(one.snapshots[0].version)
    assert (one.lose(2.0, 0), one.lose(2.0, 0)) == ([r], []) and one.snapshots[0].version == version + 1
    one.set_open(0, up=True)
    assert one.ask_again(2.0) == [(other, 0)]
    one.token(3.0, r), one.recall(3.0, r)  # of an answer that was on its way: nothing happens
    assert one.route(3.0, r) == 0
    assert one.snapshots[0].requests == one.snapshots[0].prefills == 2


def test_free_memory_is_guessed_until_an_engine_reports_it() -> None:
    one = live()
    r = one.arrive(0.0, ASKED)
    one.route(0.0, r)
    one.token(0.5, r, 12)
    one.route(1.0, one.arrive(1.0, ASKED))
    assert one.snapshots["free_blocks"].tolist() == [93, 100], "112 tokens take 7 blocks of 16"
    one.report(0, free_blocks=5, busy_until_s=9.0)
    one.route(2.0, one.arrive(2.0, ASKED))
    assert one.snapshots[0].free_blocks == 5 and one.snapshots[0].busy_until_s == 9.0


def test_the_index_of_an_engine_is_as_large_as_the_memory_it_reports() -> None:
    one = LiveRouter(
        router("kv-aware"), [LiveEngine(str(e), MODEL, 100, prefix_cache_tokens=None) for e in range(2)], (0.05,)
    )
    chunks = list(range(6))

    def goes_to(now_s: float) -> int:
        r = one.arrive(now_s, ASKED, chunks)
        e = one.route(now_s, r)
        one.token(now_s, r), one.leave(now_s, r, finished=True)
        return e

    assert one.snapshots["index_sets"].tolist() == [6, 6]
    assert goes_to(0.0) == goes_to(1.0) == 0
    one.set_memory(1, 1600, 16)
    assert one.snapshots["index_sets"].tolist() == [6, 100] and one.known.prefixes.sent.shape == (2, 100)
    assert goes_to(2.0) == 0, "what engine 0 has is known as before"
    one.set_memory(0, 100, 16)
    assert goes_to(3.0) == 0, "nothing has changed there"
    one.set_memory(0, 200, 16)
    assert goes_to(4.0) == 1, "engine 0 is another one, and its index empty"
    one.set_memory(1, 16, 16)
    assert one.snapshots["index_sets"].tolist() == [12, 1] and goes_to(5.0) == 0


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_whatever_happens_the_book_adds_up(data: st.DataObject) -> None:
    """Any events in any order; and rows are no more than what is needed."""
    name = data.draw(st.sampled_from(["min-load", "gorouting", "llumnix", "never", "alone"]))
    one = live(of({"never": never, "alone": alone}[name]) if name in ("never", "alone") else name, 3, rows=2)
    there: list[int] = []
    most = 0
    for step in range(data.draw(st.integers(1, 40))):
        kind = data.draw(
            st.sampled_from(["arrive", "arrive", "token", "leave", "recall", "lose", "open", "ask", "send"])
        )
        e = data.draw(st.integers(0, 2))
        now_s = step / 8
        if kind == "arrive":
            r = one.arrive(now_s, RequestTerms(data.draw(st.integers(1, 50)), 1.0, 0.05))
            assert r not in there
            one.route(now_s, r, data.draw(st.sets(st.integers(0, 2), max_size=2)))
            there.append(r)
            most = max(most, len(there))
        elif kind == "lose":
            one.lose(now_s, e)
        elif kind == "open":
            one.set_open(e, data.draw(st.booleans()), data.draw(st.booleans()))
        elif kind == "ask":
            one.ask_again(now_s)
        elif there:
            r = there[data.draw(st.integers(0, len(there) - 1))]
            if kind == "token":
                one.token(now_s, r, data.draw(st.integers(1, 3)))
            elif kind == "leave":
                there.remove(r)
                one.leave(now_s, r, data.draw(st.booleans()))
            elif kind == "send":
                one.send(now_s, r, e)
            else:
                one.recall(now_s, r)
        book(one, there)
    assert len(one.rows.table) <= max(2, 2 * most)


def book(one: LiveRouter, there: list[int]) -> None:
    """Every sum of the router's view, counted from its lists."""
    rows, at = one.rows, []
    assert all(np.isnan(rows.first_token_s[r]) == (rows.emitted[r] == 0) for r in there)
    assert rows.used == len(there) and one.held == one.known.tiers["waiting"].sum()
    for e, snapshot in enumerate(one.snapshots):
        record, running = one.known.prefilling[e, : snapshot.prefills], one.known.decoding[e, : snapshot.decodes]
        assert snapshot.requests == snapshot.prefills + snapshot.decodes
        assert snapshot.prefill_tokens == sum(rows.prompt[r] + rows.outcomes[r].sent_tokens for r in record)
        assert snapshot.decode_tokens == sum(rows.prompt[r] + rows.emitted[r] for r in running)
        assert all(rows.engine[r] == e for r in (*record, *running))
        at.extend([*record, *running])
    waiting = []
    for held_queue in one.known.tiers:
        r = held_queue.first
        for _ in range(held_queue.waiting):
            waiting.append(int(r))
            r = rows.outcomes[r].next_in_queue
    assert len(set(at + waiting)) == len(at + waiting) and set(at + waiting) <= set(there)


def test_a_router_that_goes_by_adapters_needs_their_numbers() -> None:
    with pytest.raises(RoutingError, match="lora-affinity goes by LoRA adapters; give max_loras"):
        Assumptions.of(router("lora-affinity"), "h100-llama3-8b").live(["0"])
    for name in ("min-load", "predicted-cost"):  # the latter looks at adapters where engines have some
        assert Assumptions.of(router(name), "h100-llama3-8b").live(["0"]).policy.name == name


@pytest.mark.parametrize("names", [("slow", "fast"), ("fast", "slow"), ("slow", "slow", "fast")])
def test_each_engine_has_the_times_and_the_memory_of_its_own_profile(names: tuple[str, ...]) -> None:
    fast = load_profile("h100-llama3-8b")
    assumed = Assumptions.of(router("predicted-cost"), "a6000-llama3.1-8b")
    live = replace(assumed, profiles={"fast": fast}).live(names)
    e = live.route(0.0, live.arrive(0.0, RequestTerms(4000, 1.0, 0.05)))
    assert names[e] == "fast" and live.snapshots["total_blocks"][e] == fast.kv.total_blocks != assumed.total_blocks
    assert len(set(live.snapshots["pool"].tolist())) == 2

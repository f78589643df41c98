"""A live router that is told what happened in a simulated run decides as the simulated router did."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.adapters.routing import live
from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.registry import router, router_names
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import ENGINE_SNAPSHOT, HOLD, REFUSE
from tests.adapters.routing.simulated import Decision, LiveReplay, recorded, scenario, workload
from tests.any_router import ROUTER as ANY_ENGINE
from tests.baselines.learned.cases import refusing_where_late

# PolyServe takes engines out of the common pool, and their requests back: a live engine gives none back.
SAME = [name for name in router_names() if name != "polyserve"]
# These number requests by row: they decide the same as long as no row is used again.
BY_NUMBER = {"round-robin", "random"}
READ_PREFIXES = ("prefix-affinity", "predicted-cost", "lost-gain", "kv-aware", "session-hash")
TROUBLE = (
    Incident(0.5, 1, "fail"), Incident(1.0, 2, "drain"), Incident(1.5, 1, "return"), Incident(2.0, 0, "fail"),
    Incident(2.0, 3, "fail"), Incident(2.5, 2, "return"), Incident(3.0, 0, "return"),
)  # fmt: skip
ALL_DOWN = tuple(Incident(0.75, e, "fail") for e in range(4)) + tuple(Incident(1.25, e, "return") for e in (2, 0))


def compared(
    policy: Policy, seed: int, rows: int, incidents: Any = (), requests: int = 120, stores: bool = True, **served: bool
) -> LiveReplay:
    of = scenario(policy, workload(seed, requests, **served), incidents, stores)
    items, at_end = recorded(of)
    replayed = LiveReplay(of, rows, at_end)
    replayed.play(items)
    simulated = [item for item in items if isinstance(item, Decision)]
    assert len(simulated) >= len(of.workload)
    for mine, theirs in zip(replayed.asked, simulated, strict=True):
        assert (mine.time_s, mine.request, mine.engine) == (theirs.time_s, theirs.request, theirs.engine)
        assert (mine.records, mine.running, mine.adapters) == (theirs.records, theirs.running, theirs.adapters)
        for field in ENGINE_SNAPSHOT.names or ():
            np.testing.assert_array_equal(mine.snapshots[field], theirs.snapshots[field], err_msg=field)
    assert replayed.router.fallbacks == 0 and replayed.router.rows.used == 0 and replayed.router.held == 0
    return replayed


@pytest.mark.slow
@pytest.mark.parametrize("incidents", [(), TROUBLE, ALL_DOWN], ids=["calm", "trouble", "all-down"])
@pytest.mark.parametrize("name", SAME)
def test_the_same_events_give_the_same_choices(name: str, incidents: Any) -> None:
    compared(router(name), seed=len(name), rows=128, incidents=incidents, prefixes=name in READ_PREFIXES)


@pytest.mark.parametrize("name", READ_PREFIXES)
@pytest.mark.parametrize("prefixes", [True, False], ids=["cached", "not-cached"])
def test_they_do_where_requests_are_turns_of_sessions_and_engines_cache(name: str, prefixes: bool) -> None:
    replayed = compared(
        router(name), 11, rows=128, incidents=TROUBLE, requests=200, stores=False, prefixes=prefixes, sessions=True
    )
    assert len(set(replayed.table["session"])) < 120 and len({one.engine for one in replayed.asked}) > 1
    assert (replayed.router.snapshots["index_uses"].sum() > 0) == prefixes


NAMED = (
    "lora-affinity", "predicted-cost", "lora-affinity:affinity_weight=3", "learned:session-fleet", "kv-aware",
    "lost-gain",
)  # fmt: skip


@pytest.mark.parametrize("incidents", [(), TROUBLE], ids=["calm", "trouble"])
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if k > 1 else ()) for k, one in enumerate(NAMED)]
)
def test_they_do_where_requests_name_adapters(name: str, incidents: Any) -> None:
    """Prompts that begin alike under different adapters share nothing."""
    replayed = compared(
        router(name), 12, rows=128, incidents=incidents, requests=200, stores=False, prefixes=True, adapters=True
    )
    listed = [one.adapters for one in replayed.asked]
    assert max(len(sent) for sents in listed for sent in sents) == 3 and len({str(sents) for sents in listed}) > 20
    failed = [one.adapters[e] for one in replayed.asked for e in range(4) if not one.snapshots["up"][e]]
    assert bool(failed) == bool(incidents) and not any(failed), "a failed engine has none"


@pytest.mark.slow
def test_a_learned_router_on_one_that_goes_by_adapters_decides_the_same(tmp_path: Path) -> None:
    policy = load_policy(save_policy(refusing_where_late(router("lora-affinity")), tmp_path / "mine.json", {}))
    replayed = compared(policy, 5, rows=128, requests=200, adapters=True)
    assert any(one.engine == REFUSE for one in replayed.asked)


incidents_of = st.lists(
    st.builds(
        Incident,
        st.integers(0, 320).map(lambda n: n / 64),
        st.integers(0, 3),
        st.sampled_from(["fail", "return", "return", "drain"]),
    ),
    max_size=8,
).map(lambda drawn: (*drawn, *(Incident(6.0, e, "return") for e in range(4))))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.sampled_from(SAME), st.integers(0, 2**31), incidents_of)
def test_they_do_whatever_is_served_and_whatever_fails(name: str, seed: int, incidents: Any) -> None:
    compared(router(name), seed, rows=64, incidents=incidents, requests=60)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SAME) - BY_NUMBER))
def test_they_do_where_rows_are_used_again(name: str) -> None:
    settings = {"fallback": "least-loaded"} if name == "gorouting" else {}
    policy = router(name).with_settings(**settings)
    replayed = compared(policy, 3, rows=2, incidents=TROUBLE, prefixes=True, requests=300)
    assert len(replayed.router.rows.table) < 300, "rows of requests that have left should be taken again"


def test_lists_of_engines_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_CAPACITY", 4)
    replayed = compared(router("llumnix"), 3, rows=256, requests=200)
    assert replayed.router.known.prefilling.shape[1] > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_all_that_a_router_may_know_is_the_same_and_lines_are_asked_in_the_same_order(seed: int) -> None:
    replayed = compared(ANY_ENGINE.with_settings(holds=4), seed, rows=128, incidents=TROUBLE, prefixes=True)
    assert sum(one.engine == HOLD for one in replayed.asked) > 10


@pytest.mark.parametrize("base", ["min-load", "prefix-affinity:refuse=0.5"])
def test_a_learned_router_that_refuses_decides_the_same(base: str, tmp_path: Path) -> None:
    policy = load_policy(save_policy(refusing_where_late(router(base)), tmp_path / "mine.json", {}))
    replayed = compared(policy, 5, rows=128, requests=200, prefixes=True)
    refused = [one.engine == REFUSE for one in replayed.asked]
    assert 3 < sum(refused) < len(refused) - 3


@pytest.mark.slow
def test_a_learned_router_decides_the_same() -> None:
    compared(router("learned:cma-cluster-routing"), seed=9, rows=128, incidents=TROUBLE)

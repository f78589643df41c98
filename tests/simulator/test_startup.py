"""Engines that take time to start, and what engines cost: small cases by hand. An iteration takes 1 s + 1 s a token."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import scaler
from servegym.errors import DeploymentError, PolicyError
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.fleet import instants
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.costs import Costs
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import router as compiled_router
from servegym.simulator.records.signatures import scaler as compiled_scaler
from servegym.simulator.records.types import HOLD, POOL
from tests.simulator.fleets import FIRST, back, drain, fail, run
from tests.simulator.fleets import scaler as to_tier
from tests.simulator.forming import SECONDS
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import lines

pytestmark = pytest.mark.nojit


def pool(engines: int, seconds: float, started: int = 0, **more) -> Deployment:
    return Deployment(SECONDS, SECONDS, 1000, engines, 1, 0.0, startup=Startup(seconds, started), **more)


def test_from_zero():
    """The check at 2 s starts engine 0, which is ready at 5 s: requests wait for it, and it costs from 2 s on."""
    simulation = run(requests(prompt_tokens=[1, 1]), pool(2, 3.0), routing=FIRST, tiers=(1.0,), scaler=to_tier(0))
    assert lines(simulation, "held", "moved", "started", "off") == [
        (0.0, "held", -1, 0, 0), (0.0, "held", -1, 1, 0), (2.0, "moved", 0, -1, 0), (5.0, "started", 0, -1, 0),
    ]  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [8.0, 8.0]  # in one batch
    assert simulation.result().engines["service_s"].tolist() == [6.0, 0.0]


def test_at_once():
    simulation = run(requests(prompt_tokens=[1]), pool(2, 0.0), routing=FIRST, tiers=(1.0,), scaler=to_tier(0))
    assert lines(simulation, "held", "moved", "started") == [(0.0, "held", -1, 0, 0), (2.0, "moved", 0, -1, 0)]
    assert simulation.arrays.outcomes["finish_s"].tolist() == [4.0]


def test_an_engine_that_goes_off_gives_back_what_it_has():
    """Engine 0 serves from the beginning, and is off at 2 s: its request (3 tokens, to 4 s) waits."""
    simulation = run(
        requests(prompt_tokens=[3]), pool(2, 1.0, 1), routing=FIRST, tiers=(1.0,), scaler=to_tier(POOL),
        all_served=False, until_s=3.0,
    )  # fmt: skip
    assert lines(simulation, "moved", "off", "recalled", "held") == [
        (2.0, "moved", 0, -1, POOL), (2.0, "off", 0, -1, 1), (2.0, "recalled", 0, 0, 0), (2.0, "held", -1, 0, 0),
    ]  # fmt: skip
    assert simulation.result().engines["service_s"].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("incidents", "finish_s"), [
    ((fail(3.0), back(4.0)), 7.0), ((fail(3.0), back(6.0)), 8.0), ((fail(1.0), back(6.0)), 8.0),
    ((drain(3.0), back(6.0)), 8.0),
])  # fmt: skip
def test_an_engine_that_fails_while_it_is_loading_serves_when_it_is_back_and_ready(incidents, finish_s):
    """It is loading from 2 to 5 s, and the request then takes 2 s."""
    simulation = run(
        requests(prompt_tokens=[1]), pool(2, 3.0), routing=FIRST, tiers=(1.0,), scaler=to_tier(0),
        incidents=incidents,
    )  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [finish_s]


def test_without_a_scaler_all_are_up():
    simulation = run(requests(prompt_tokens=[1, 1]), pool(2, 3.0), routing="round-robin")
    assert simulation.arrays.outcomes["finish_s"].tolist() == [2.0, 2.0]
    assert simulation.result().summary["cost_engine_s"] == 4.0


def test_target_utilisation_starts_and_stops():
    """A request an engine: two of the four are wanted at 1 s, for two requests; they are ready at 3 s and end at 5 s.
    They go off when nobody was wanted for 10 s. For the request at 20.5 s the check at 21 s starts one again."""
    policy = scaler("target-utilisation").with_settings(
        interval_s=1.0, most_requests=1.0, utilisation=1.0, tolerance=0.0, window_s=10.0
    )
    workload = requests(arrival_s=[0.0, 0.0, 20.5], prompt_tokens=1)
    simulation = run(workload, pool(4, 2.0), routing="min-load", tiers=(1.0,), scaler=policy)
    moves = lines(simulation, "moved", "started")
    assert moves[:4] == [
        (1.0, "moved", 0, -1, 0), (1.0, "moved", 1, -1, 0), (3.0, "started", 0, -1, 0), (3.0, "started", 1, -1, 0),
    ]  # fmt: skip
    # Wanted last at 4 s (at 5 s the requests have gone): the first check that is more than 10 s later is that at 15 s.
    assert moves[4:] == [
        (15.0, "moved", 0, -1, POOL), (15.0, "moved", 1, -1, POOL), (21.0, "moved", 0, -1, 0),
        (23.0, "started", 0, -1, 0),
    ]  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [5.0, 5.0, 25.0]
    assert simulation.result().summary["cost_engine_s"] == 14.0 + 14.0 + 4.0


@pytest.mark.parametrize("routing", ["min-load", "polyserve"])
@pytest.mark.parametrize("roles", [("both",), ("prefill", "decode")])
def test_polyserve_keeps_what_it_has_started(routing, roles):
    """An engine is ready at the instant of a check. It is empty then, and requests wait for it."""
    pools = [pool(2, 2.0, role=role) for role in roles]
    simulation = run(requests(prompt_tokens=[1, 1, 1], output_tokens=2), *pools, routing=routing,
                     scaler=scaler("polyserve"))  # fmt: skip
    first, *_ = lines(simulation, "started")
    assert first == (3.0, "started", 0, -1, 0)


@compiled_router
def second_tier_only(context, request, route):
    """Requests wait for an engine of tier 1."""
    route.engine = HOLD
    for e in range(context.known.snapshots.shape[0]):
        if context.known.snapshots[e].tier == 1 and context.known.snapshots[e].closed == 0:
            route.engine = e


@compiled_scaler
def by_way_of_the_pool(context, moves):
    """Engine 0 leaves tier 0 at one check, and goes into tier 1 at the next."""
    moves[0].tier = POOL if moves[0].tier == 0 else 1


def test_an_engine_that_the_last_check_sends_off_may_be_started_at_the_next():
    """Nothing else will happen at 1 s: engine 0 goes off. The check at 2 s starts it, for a request of 2 s at 5 s."""
    routing = Policy("second-tier", "router", "Holds.", "made up", second_tier_only)
    policy = Policy("by-way-of-the-pool", "scaler", "Moves engine 0.", "made up", by_way_of_the_pool,
                    parameters=(Parameter("interval_s", 1.0, "between checks", 0.25, 8.0, "s"),))  # fmt: skip
    simulation = run(requests(prompt_tokens=[1]), pool(2, 3.0, 1), routing=routing, tiers=(0.5, 1.0), scaler=policy)
    assert lines(simulation, "moved", "off", "started") == [
        (1.0, "moved", 0, -1, POOL), (1.0, "off", 0, -1, 0), (2.0, "moved", 0, -1, 1), (5.0, "started", 0, -1, 0),
    ]  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [7.0]


def test_a_scaler_may_be_asked_often_where_its_next_check_is_all_that_comes():
    """There is no end of the run to be waited for: the check starts an engine."""
    often = scaler("target-utilisation").with_settings(interval_s=0.001)
    simulation = run(requests(prompt_tokens=[1]), pool(2, 3.0), routing="min-load", scaler=often, until_s=20_000.0)
    assert simulation.arrays.outcomes["finish_s"] == pytest.approx([5.001])


@compiled_scaler
def flapping(context, moves):
    """Every engine goes into tier 0, and at the next check back."""
    for e in range(moves.shape[0]):
        moves[e].tier = 0 if moves[e].tier == POOL else POOL


FLAPPING = Policy(
    "flapping", "scaler", "Starts engines in vain.", "made up", flapping,
    parameters=(Parameter("interval_s", 1.0, "between checks", 0.25, 8.0, "s"),),
)  # fmt: skip


@pytest.mark.parametrize("seconds", [0.0, None])
def test_a_scaler_that_starts_engines_in_vain_is_an_error(seconds, monkeypatch):
    """They are given a second each time, and take longer to compute a token."""
    if JIT_DISABLED:
        monkeypatch.setattr(instants, "MOST_STARTS", 50)
    deployment = dataclasses.replace(pool(4, 0.0), startup=None if seconds is None else Startup(seconds))
    with pytest.raises(PolicyError, match=r"scaler flapping has moved engines out of the common pool more than"):
        run(requests(prompt_tokens=[9]), deployment, routing="min-load", scaler=FLAPPING)


def test_costs():
    """6 engine-seconds, of them 3 busy, and 2 tokens."""
    costs = Costs(price_per_hour=1800.0, idle_w=100.0, busy_w=300.0, most_w=400.0)
    scene = {"routing": FIRST, "tiers": (1.0,), "scaler": to_tier(0)}
    simulation = run(requests(prompt_tokens=[1, 1]), pool(2, 3.0, costs=costs), **scene)
    summary = simulation.result().summary
    assert summary["cost"] == 3.0 and summary["cost_per_million_tokens"] == 1.5e6
    assert summary["energy_kwh"] == pytest.approx((3 * 100 + 3 * 300) / 3.6e6)
    assert summary["energy_kwh_at_most"] == pytest.approx(6 * 400 / 3.6e6)
    assert summary["energy_kwh_per_million_tokens"] == pytest.approx(summary["energy_kwh"] * 5e5)
    for unknown in (None, Costs(), Costs(idle_w=100.0)):
        other = run(requests(prompt_tokens=[1, 1]), pool(2, 3.0, costs=unknown), **scene).result().summary
        assert not [name for name in other if name.startswith(("cost_per", "energy"))] and "cost" not in other
        assert other["cost_engine_s"] == summary["cost_engine_s"] == 6.0


def test_costs_of_several_pools_are_known_where_all_are():
    workload = requests(prompt_tokens=[1, 1])
    known, unknown = (
        Deployment(SECONDS, SECONDS, 1000, 1, 1, 0.0, costs=costs) for costs in (Costs(price_per_hour=3600.0), None)
    )
    dear = dataclasses.replace(known, costs=Costs(price_per_hour=7200.0, most_w=1.0))
    assert run(workload, known, dear, routing="round-robin").result().summary["cost"] == 2.0 + 4.0
    for pools in ((known, unknown), (unknown, known)):
        assert "cost" not in run(workload, *pools, routing="round-robin").result().summary


def test_nothing_came_out():
    costs = Costs(price_per_hour=3600.0)
    scenario = run(requests(prompt_tokens=[1]), pool(2, 3.0, costs=costs), routing=FIRST, tiers=(1.0,),
                   scaler=to_tier(0), all_served=False, until_s=4.0)  # fmt: skip
    summary = scenario.result().summary
    assert summary["cost"] == 2.0 and summary["cost_per_million_tokens"] is None


@pytest.mark.parametrize("wrong", [
    lambda: Startup(-1.0), lambda: Startup(np.inf), lambda: Startup(np.nan), lambda: Startup(1.0, -1),
    lambda: Startup(1.0, 1.5), lambda: pool(2, 1.0, 3), lambda: Costs(price_per_hour=-1.0),
    lambda: Costs(idle_w=np.nan), lambda: Costs(busy_w=np.inf), lambda: Costs(idle_w=200.0, busy_w=100.0),
])  # fmt: skip
def test_what_cannot_be(wrong):
    with pytest.raises(DeploymentError, match=r"should be|there are 2") as error:
        wrong()
    assert len(str(error.value).splitlines()) == 1

"""Held queues, and engines that routers and scalers move between tiers."""

import numpy as np
import pytest

from servegym.errors import PolicyError
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.routing import nth_taker
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.policies.policy import Parameter
from servegym.simulator.records.signatures import router as router_function
from servegym.simulator.records.types import POOL, STAY
from tests.simulator.fleets import FIRST, fail, made_up, run, scaler
from tests.simulator.replay import replay
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import LINK, lines, pool

pytestmark = pytest.mark.nojit


@router_function
def one_at_a_time(context, request, route):
    """An engine in the request's tier that has nothing to do, or one from the pool; else it is held."""
    known = context.known
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        if (
            snapshot.up == 1
            and snapshot.closed == 0
            and snapshot.requests == 0
            and (snapshot.tier == route.held_queue or snapshot.tier == POOL)
        ):
            route.engine = e
            route.tier = route.held_queue
            return


@router_function
def wrong(context, request, route):
    parameters = context.parameters
    if parameters[0] == 0:
        route.engine = 7
    elif parameters[0] == 1:
        route.held_queue = 5
    elif parameters[0] == 2:
        route.engine, route.tier = 0, 3
    elif parameters[0] == 3:
        route.engine, route.tier = 0, 0


@router_function
def opening(context, request, route):
    """A pending engine, moved into a tier (-1: not moved); else the first."""
    requests, known, parameters = context.requests, context.known, context.parameters
    route.engine = nth_taker(0, known.snapshots, requests[request])
    for e in range(known.snapshots.shape[0]):
        if known.snapshots[e].pending == 1:
            route.engine, route.tier = e, int(parameters[0])


OPENING, NOT_OPENING = (
    made_up(opening, "router", Parameter("tier", tier, ""), moves_engines=True) for tier in (0, STAY)
)
ONE = made_up(one_at_a_time, moves_engines=True)


def test_tiers_are_the_slos_of_the_workload():
    """Of more than 8 those at even places: 0, 1, 2, 3, 5, 6, 7 and 9 of ten."""
    cluster = Cluster((pool("both", 2),), LINK)
    assert cluster.tiers_for(requests(prompt_tokens=1, tpot_slo_s=[5.0, 3.0, 3.0, 9.0])).tolist() == [3, 5, 9]
    ten = requests(prompt_tokens=1, tpot_slo_s=np.arange(1.0, 11.0))
    assert cluster.tiers_for(ten).tolist() == [1, 2, 3, 4, 6, 7, 8, 10]


def test_requests_wait_in_the_lines_of_their_tiers():
    """Tiers of 1 and 2 s, two engines in the pool: request 0 (tier 1) takes engine 0, request 1 (tier 0) engine 1;
    2 and 3 wait in their lines, 3 for less long: tier 0 is free again at 4 s, tier 1 at 6 s."""
    workload = requests(prompt_tokens=[5, 3, 1, 1], output_tokens=1, tpot_slo_s=[2.0, 1.0, 2.5, 1.5])
    simulation = run(workload, pool("both", 2), routing=ONE, tiers=(1.0, 2.0))
    assert lines(simulation, "held", "moved") == [
        (0.0, "moved", 0, -1, 1), (0.0, "moved", 1, -1, 0), (0.0, "held", -1, 2, 1), (0.0, "held", -1, 3, 0),
    ]  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [6.0, 4.0, 8.0, 6.0]
    assert simulation.result().engines["tier"].tolist() == [1, 0]


def test_an_engine_that_goes_from_the_pool_into_a_tier_gives_up_what_it_has():
    """At 2 s the scaler moves engine 0, which is at 0 (3 tokens to 4 s): it goes to engine 1, which is then opened."""
    workload = requests(prompt_tokens=[3], output_tokens=1)
    simulation = run(workload, pool("both", 2), routing=FIRST, tiers=(1.0,), scaler=scaler(0))
    assert lines(simulation, "moved", "recalled") == [(2.0, "moved", 0, -1, 0), (2.0, "recalled", 0, 0, 0)]
    assert replay(simulation).route == [[0, 0]] and simulation.arrays.outcomes["finish_s"].tolist() == [6.0]
    # In service is what is in a tier: engine 0 from 2 s on; engine 1 never.
    assert simulation.result().engines["service_s"].tolist() == [4.0, 0.0]
    assert simulation.result().summary["cost_engine_s"] == 4.0


def test_a_closed_engine_takes_nothing_until_it_is_opened():
    """Engine 0 fails at 2.5 s, engine 1 is closed from 2 s and opened at 6 s: request 1, of 3 s, runs from 6 to 8 s."""
    workload = requests(arrival_s=[0.0, 3.0, 20.0], prompt_tokens=1, output_tokens=1)
    simulation = run(workload, pool("both", 2), routing=FIRST, incidents=(fail(2.5),), scaler=scaler(POOL, 6.0))
    assert lines(simulation, "held") == [(3.0, "held", -1, 1, 0)]
    assert simulation.arrays.outcomes["finish_s"].tolist() == [2.0, 8.0, 22.0]


def test_a_router_opens_a_pending_engine_that_it_moves_into_a_tier():
    """Engine 1 is closed at 2 s; request 1, which comes at 3 s, opens it."""
    workload = requests(arrival_s=[0.0, 3.0], prompt_tokens=1, output_tokens=1)
    simulation = run(workload, pool("both", 2), routing=OPENING, scaler=scaler(POOL, 6.0))
    assert lines(simulation, "moved") == [(3.0, "moved", 1, -1, 0)]
    assert replay(simulation).route == [[0], [1]] and simulation.arrays.outcomes["finish_s"].tolist() == [2.0, 5.0]
    # What is drained, or stays where it is, is not opened.
    drained = run(workload, pool("both", 2), routing=OPENING, incidents=(Incident(2.5, 1, "drain"),),
                  scaler=scaler(POOL, 6.0))  # fmt: skip
    assert replay(drained).route == [[0], [0]]
    with pytest.raises(PolicyError, match="should name an engine that takes the request"):
        run(workload, pool("both", 2), routing=NOT_OPENING, scaler=scaler(POOL, 6.0))


def test_where_nothing_else_happens_a_scaler_is_asked_once_more_and_no_more():
    """As above without request 2: the check at 4 s is the last, and request 1 would never be served."""
    workload = requests(arrival_s=[0.0, 3.0], prompt_tokens=1, output_tokens=1)
    with pytest.raises(PolicyError, match=r"at 4 s 1 requests wait, .*: scaler to_tier has opened no engine"):
        run(workload, pool("both", 2), routing=FIRST, incidents=(fail(2.5),), scaler=scaler(POOL, 6.0))


@pytest.mark.parametrize(("mistake", "words"), [
    (0, "router wrong sent request 0 to engine 7"),
    (1, "held queue 5"),
    (2, "sent request 0 to engine 0 .* tier 3"),
    (3, "moved engine 0 to tier 0; .* registered with moves_engines=True"),
    (4, "holds 1 requests"),
])  # fmt: skip
def test_a_router_that_does_what_cannot_be_is_told_so(mistake, words):
    """In one line: where, when, and what would be right."""
    policy = made_up(wrong, "router", Parameter("mistake", mistake, ""), moves_engines=mistake == 2)
    with pytest.raises(PolicyError, match=words) as error:
        run(requests(prompt_tokens=[2]), pool("both", 2), routing=policy)
    assert "\n" not in str(error.value) and "at 0 s" in str(error.value) and "should" in str(error.value)

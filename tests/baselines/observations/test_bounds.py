"""Every number is within its bounds, whatever the state: of records at random, and of states that runs come to.

(`seeing` looks at the bounds of each observation it makes.)
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.learned.routing import measure_of
from servegym.baselines.registry import router_names, scaler, scheduler_names
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import Estimator
from servegym.simulator.records.statuses import AT_CHECKS, AT_ROUTES, DECISION
from servegym.simulator.runs.simulation import Simulation
from tests import strategies
from tests.baselines.observations.records import disturb_snapshots, random_engine, random_plan, random_requests
from tests.baselines.observations.seeing import at_batch, of_caching, of_day, of_engine, of_queue, of_routing, of_tiers

pytestmark = pytest.mark.slow

FEW = settings(max_examples=8)
MOST_STOPS = 60


@st.composite
def models(draw):
    """A linear model, some of them without a constant part, or with nothing that takes time."""
    model = draw(strategies.linear_models())
    coefficients = model.coefficients * draw(st.sampled_from([1.0, 1.0, 0.0, 1e9]))
    return Estimator(model.batch_s.value, model.exec_s.value, coefficients, np.zeros(2, layout.BATCH))


@given(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from([0, 1, 7, 64]), models())
@settings(max_examples=150)
def test_of_any_queue(seed, n, slots, estimator):
    random = np.random.default_rng(seed)
    requests, engine = random_requests(random, n + 3), random_engine(random)
    queue, now_s = random.permutation(n + 3)[:n].astype("i4"), float(random.choice([0.0, 0.5, 1e3, 1e9]))
    seen = of_engine(now_s, engine, requests, queue, estimator)
    plan = random_plan(random, n)
    got, places = of_queue(now_s, engine, requests, queue, estimator, plan, slots)
    assert len(places) == min(slots, int((plan["tier"] < layout.LEAVE_OUT).sum()))
    # The order of the queue does not change what is observed of it as a whole.
    again = of_engine(now_s, engine, requests, random.permutation(queue), estimator)
    assert again == pytest.approx(seen, abs=1e-5)
    # Slots show whoever is in them: the same requests in another queue look the same, but for ties of rank.
    if slots >= n and len(np.unique(plan[["tier", "key"]])) == n:
        mixed = random.permutation(n)
        other, others = of_queue(now_s, engine, requests, queue[mixed], estimator, plan[mixed], slots)
        assert queue[mixed][others].tolist() == queue[places].tolist() and other == pytest.approx(got, abs=1e-5)


@pytest.mark.parametrize("name", scheduler_names())
@given(st.data())
@FEW
def test_of_states_that_schedulers_come_to(name, data):
    simulation = Simulation(data.draw(strategies.scenarios(name)))
    slots = data.draw(st.sampled_from([1, 4, 32]))
    for _ in range(MOST_STOPS):
        if not simulation.step():
            break
        at_batch(simulation, slots)


@pytest.mark.parametrize("name", router_names())
@given(st.data())
@FEW
def test_of_states_that_routers_come_to(name, data):
    simulation = Simulation(data.draw(strategies.cluster_scenarios(name)))
    engines = len(simulation.arrays.engines)
    slots, decode = data.draw(st.sampled_from([1, engines, 8])), data.draw(st.sampled_from([0, 1]))
    for _ in range(MOST_STOPS):
        if simulation._advance(AT_ROUTES) != DECISION:
            break
        status = simulation.arrays.status[0]
        r, now_s, chosen = (
            int(status.deciding_request),
            float(status.now_s),
            int(simulation.router_state.route[0].engine),
        )
        got = of_routing(simulation, r, now_s, chosen, decode, slots)
        if decode == 0 and 0 <= chosen < slots:
            assert got[f"engine[{chosen}].takes"] == got[f"engine[{chosen}].chosen"] == 1
        measure = measure_of(simulation.settings.router)
        of_caching(simulation, r, now_s, chosen, measure, slots)
        of_tiers(simulation, now_s, slots)


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=40)
def test_of_anything_a_router_could_know(data, seed):
    random = np.random.default_rng(seed)
    simulation = Simulation(data.draw(strategies.cluster_scenarios("min-load")))
    engines = len(simulation.arrays.engines)
    for _ in range(int(random.integers(1, 30))):
        if simulation._advance(AT_ROUTES) != DECISION:
            return
    run, router_state = simulation.arrays, simulation.router_state
    run.requests[:] = random_requests(random, len(run.requests))
    disturb_snapshots(random, router_state.known.snapshots, len(router_state.known.tiers) - 2)
    router_state.known.tiers["waiting"] = random.choice([0, 1, 10**6], len(router_state.known.tiers))
    router_state.moves["tier"] = random.integers(-1, len(router_state.known.tiers) - 2, engines)
    slots, now_s = int(random.choice([1, engines, 9])), float(random.choice([0.0, 0.5, 1e9]))
    for decode in (0, 1):
        of_routing(simulation, int(run.status[0].deciding_request), now_s, -1, decode, slots)
    of_caching(simulation, int(run.status[0].deciding_request), now_s, -1, 2, slots)
    of_tiers(simulation, now_s, slots)
    of_day(simulation, now_s, -1, slots)


@given(st.data())
@settings(max_examples=15)
def test_of_states_that_a_scaler_comes_to(data):
    scenario = data.draw(strategies.cluster_scenarios("polyserve"))
    pools = tuple(dataclasses.replace(pool, role="both", total_blocks=200) for pool in scenario.deployment.pools)
    scenario = dataclasses.replace(
        scenario,
        deployment=Cluster(pools),
        scaler=scaler("polyserve").with_settings(interval_s=data.draw(st.sampled_from([0.05, 0.7]))),
    )
    simulation = Simulation(scenario)
    for _ in range(MOST_STOPS):
        if simulation._advance(AT_CHECKS) != DECISION:
            break
        got = of_tiers(simulation, float(simulation.arrays.status[0].now_s), len(simulation.arrays.engines))
        moves = simulation.router_state.moves
        assert [got[f"engine[{e}].base_closes"] for e in range(len(moves))] == (moves["closed"] != 0).tolist()

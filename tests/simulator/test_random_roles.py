"""What must hold when engines change their roles at any time: every request is served once, in memory that is there."""

import dataclasses

from hypothesis import assume
from hypothesis import strategies as st

from servegym.baselines.registry import router_names
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from tests.seeds import drawn
from tests.simulator.incident_strategies import any_settings, incident_scenarios
from tests.simulator.random_policies import RANDOM_SCALER
from tests.simulator.replay import replay
from tests.simulator.test_random_incidents import (
    assert_each_is_in_one_place,
    assert_every_request_was_served,
    assert_tokens_are_conserved,
    finished_if_engines_are_left,
)
from tests.strategies import policies, seconds

SCALERS = st.one_of(any_settings(RANDOM_SCALER), policies("pd-ratio", "scaler"))


def changing(pool: Deployment, draw: st.DrawFn) -> Deployment:
    """The pool, if it only prefills or only decodes mostly with roles that change; it caches nothing."""
    if pool.role == "both" or draw(st.integers(0, 4)) == 0:
        return pool
    role_change_s = draw(st.one_of(st.just(0.0), seconds(0, 4.0)))
    return dataclasses.replace(pool, role_change_s=role_change_s, prefix_caching=False, prefix_store=None)


@st.composite
def changing_scenarios(draw: st.DrawFn, all_return: bool) -> Scenario:
    """A cluster of prefill and decode engines under any router, whose engines fail and change their roles."""
    scenario = draw(st.sampled_from(router_names()).flatmap(lambda name: incident_scenarios(name, all_return)))
    cluster = scenario.deployment
    assume(any(pool.role == "decode" for pool in cluster.pools))
    pools = tuple(changing(pool, draw) for pool in cluster.pools)
    cluster = dataclasses.replace(cluster, pools=pools)
    incidents = scenario.incidents if draw(st.booleans()) else ()
    return dataclasses.replace(scenario, deployment=cluster, scaler=draw(SCALERS), incidents=incidents)


@drawn(60, slow=True)
def test_every_request_is_served_once_by_engines_that_change_their_roles(data):
    scenario = data.draw(changing_scenarios(all_return=True))
    simulation = finished_if_engines_are_left(scenario)
    assert_every_request_was_served(simulation, scenario)
    assert_each_is_in_one_place(simulation)
    engines = simulation.arrays.engines
    assert (engines["totals"]["peak_blocks"] <= engines["total_blocks"]).all()


@drawn(60, slow=True)
def test_where_a_run_is_cut_each_request_is_in_one_place(data):
    scenario = data.draw(changing_scenarios(all_return=False))
    scenario = dataclasses.replace(scenario, until_s=data.draw(seconds(0, 20.0)))
    simulation = finished_if_engines_are_left(scenario)
    log = replay(simulation)
    assert simulation.arrays.status[0].finished == sum(log.finished)
    assert_tokens_are_conserved(log, scenario)
    assert_each_is_in_one_place(simulation)
    assert (simulation.arrays.engines["totals"]["peak_blocks"] <= simulation.arrays.engines["total_blocks"]).all()

"""What must hold whatever a scaler that ships does with engines that take time to start: every request is served."""

import dataclasses

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scaler_names
from servegym.simulator.inputs.scenario import Scenario
from tests.seeds import drawn
from tests.simulator.incident_strategies import incident_scenarios, startups
from tests.simulator.test_random_incidents import assert_each_is_in_one_place, assert_every_request_was_served
from tests.simulator.whole_runs import finished
from tests.strategies import policies

routers = st.sampled_from(router_names())


@st.composite
def scaled_scenarios(draw: st.DrawFn, name: str) -> Scenario:
    """A cluster of two engines or more under the scaler of this name; at first most of them are off, or all."""
    scenario = draw(routers.flatmap(incident_scenarios))
    cluster = scenario.deployment
    assume(cluster.engines > 1)
    pools = tuple(dataclasses.replace(pool, startup=draw(startups(pool.engines))) for pool in cluster.pools)
    cluster = dataclasses.replace(cluster, pools=pools)
    return dataclasses.replace(scenario, deployment=cluster, scaler=draw(policies(name, "scaler")), incidents=())


@pytest.mark.parametrize("name", [name for name in scaler_names() if name != "pd-ratio"])  # which starts none
@drawn(30)
def test_every_request_is_served_by_engines_that_take_time_to_start(name, data):
    scenario = data.draw(scaled_scenarios(name))
    simulation = finished(scenario)
    assert_every_request_was_served(simulation, scenario)
    assert_each_is_in_one_place(simulation)

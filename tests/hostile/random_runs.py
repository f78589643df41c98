"""Random runs of everything: any policies, devices and forms, with incidents, scalers, start-up and sessions."""

import dataclasses

from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scaler_names
from servegym.latency_models.forms import estimator_forms
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.scenario import Scenario
from tests.episodes import episodes, fits_again
from tests.simulator.incident_strategies import incident_scenarios, startups
from tests.strategies import cluster_scenarios, policies, sessions_of

routers = st.sampled_from(router_names())
scalers = st.sampled_from(scaler_names()).flatmap(lambda name: policies(name, "scaler"))


@st.composite
def with_startup(draw: st.DrawFn) -> Scenario:
    """A cluster whose engines are off at first, most of them or all, under a scaler that ships."""
    scenario = draw(routers.flatmap(cluster_scenarios))
    pools = tuple(
        dataclasses.replace(pool, startup=draw(st.one_of(st.none(), startups(pool.engines))))
        for pool in scenario.deployment.pools
    )
    cluster: Cluster = dataclasses.replace(scenario.deployment, pools=pools)
    if cluster.engines == 1 or not fits_again(cluster, scenario.workload):
        return scenario
    return dataclasses.replace(scenario, deployment=cluster, scaler=draw(scalers))


@st.composite
def runs(draw: st.DrawFn) -> Scenario:
    scenario = draw(
        st.one_of(
            st.sampled_from(estimator_forms()).flatmap(episodes),
            with_startup(),
            routers.flatmap(lambda name: incident_scenarios(name, all_return=False)),
        )
    )
    return draw(sessions_of(st.just(scenario))) if draw(st.integers(0, 3)) == 0 else scenario

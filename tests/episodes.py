"""Hypothesis strategies: random episodes of everything that is registered, on devices and with estimators of any form.

One engine, clusters, and clusters in trouble; whatever the scheduler, the router, the scaler, noise and correction.
"""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scaler_names, scheduler_names
from servegym.errors import DeploymentError
from servegym.latency_models.forms import estimator_forms
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from tests import random_scheduler
from tests.models import models
from tests.simulator.incident_strategies import incident_scenarios
from tests.simulator.random_policies import RANDOM_ROUTER
from tests.strategies import cluster_scenarios, policies, scenarios

# Always corrected and most often disturbed: strategies.py has the others.
corrections = st.builds(
    Correction, theta=st.floats(0, 0.95), window_iterations=st.integers(1, 12), compounding=st.booleans()
)
disturbances = st.builds(
    Disturbance, noise=st.sampled_from([0.0, 0.05, 0.5]), drift_per_s=st.sampled_from([0.0, 0.001]),
    shift_s=st.floats(0, 10), shift_ratio=st.floats(0.25, 4), seed=st.integers(0, 2**32),
)  # fmt: skip
routers = st.sampled_from(router_names())
calm = st.one_of(
    st.sampled_from(scheduler_names()).flatmap(scenarios),
    routers.flatmap(cluster_scenarios),
    routers.flatmap(incident_scenarios),
    st.just(RANDOM_ROUTER.name).flatmap(incident_scenarios),
)
scalers = st.one_of(st.none(), st.sampled_from(scaler_names()).flatmap(lambda name: policies(name, "scaler")))


def random_scheduler_set(seed: int) -> Policy:
    random = np.random.default_rng(seed)
    settings = random_scheduler.random_settings(random) | random_scheduler.random_tasks(random)
    return random_scheduler.POLICY.with_settings(**settings)


any_settings = st.integers(0, 2**32).map(random_scheduler_set)


def fits_again(deployment: Cluster, workload: Workload) -> bool:
    """Whether requests that are taken back fit too; a scaler takes them back."""
    try:
        deployment.check_fits(workload, again=True)
    except DeploymentError:
        return False
    return True


@st.composite
def with_forms(draw: st.DrawFn, pool: Deployment, form: str) -> Deployment:
    """The pool on another device, with an estimator of this form."""
    return dataclasses.replace(pool, device=draw(models()), estimator=draw(models(form)))


@st.composite
def episodes(draw: st.DrawFn, form: str) -> Scenario:
    """A whole run in which the estimator of the first pool is of this form, and is corrected."""
    scenario = draw(calm)
    first, *others = scenario.deployment.pools
    forms = st.sampled_from(estimator_forms())
    pools = (draw(with_forms(first, form)), *(draw(with_forms(pool, draw(forms))) for pool in others))
    deployment: Deployment | Cluster = pools[0]
    scaler, scheduler = scenario.scaler, scenario.scheduler
    if isinstance(scenario.deployment, Cluster):
        deployment = dataclasses.replace(scenario.deployment, pools=pools)
        scaler = scaler or (draw(scalers) if fits_again(deployment, scenario.workload) else None)
    if draw(st.integers(0, 7)) == 0:
        scheduler = draw(any_settings)
    return dataclasses.replace(
        scenario, deployment=deployment, scaler=scaler, scheduler=scheduler,
        disturbance=draw(disturbances), correction=draw(corrections),
    )  # fmt: skip

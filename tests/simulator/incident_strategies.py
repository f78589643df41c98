"""Hypothesis strategies: clusters in which engines fail, return, are drained and moved, and prefills are suspended."""

import dataclasses

import numpy as np
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler_names
from servegym.simulator.features.operators import Operators
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import INCIDENTS
from tests.simulator.random_policies import RANDOM_ROUTER, RANDOM_SCALER, RANDOM_SCHEDULER
from tests.strategies import MOST_REQUESTS, cluster_scenarios, policies, seconds, ticks

LAST_INCIDENT_S = 6.0


@st.composite
def any_settings(draw: st.DrawFn, policy: Policy) -> Policy:
    """A policy of random_policies.py with any settings."""
    chosen = {}
    for p in policy.parameters:
        values = st.integers(int(p.low), int(p.high)) if p.integer else seconds(p.low, min(p.high, 8.0))
        chosen[p.name] = draw(st.one_of(st.just(p.default), values))
    return policy.with_settings(**chosen)


@st.composite
def incidents(draw: st.DrawFn, engines: int, all_return: bool) -> tuple[Incident, ...]:
    """Engines that fail, return and are drained at any times; all_return: in the end all work again."""
    of_one = st.builds(
        Incident, seconds(0, LAST_INCIDENT_S), st.integers(0, engines - 1), st.sampled_from([*INCIDENTS, "fail"])
    )
    drawn = draw(st.lists(of_one, min_size=1, max_size=6))
    after_s = draw(seconds(LAST_INCIDENT_S, 20.0))
    return (*drawn, *(Incident(after_s, e, "return") for e in range(engines) if all_return))


def startups(engines: int) -> st.SearchStrategy[Startup]:
    return st.builds(Startup, st.one_of(st.just(0.0), seconds(0, 4.0)), st.integers(0, engines))


@st.composite
def with_prompts(draw: st.DrawFn, workload: Workload) -> Workload:
    """Each prompt begins as one of two do, for as long as it is; or nothing is known of prompts."""
    if draw(st.booleans()):
        return workload
    chunk_tokens = draw(st.integers(1, 8))
    answers = workload.table["output_tokens"] * draw(st.booleans())
    counts = (workload.table["prompt_tokens"] + answers) // chunk_tokens
    family = draw(st.lists(st.integers(0, 1), min_size=len(counts), max_size=len(counts)))
    rows = [1000 * k + np.arange(count) for k, count in zip(family, counts.tolist(), strict=True)]
    return dataclasses.replace(
        workload, prefixes=Prompts(chunk_tokens, np.cumsum([0, *counts]), np.concatenate(rows).astype("i8"))
    )


@st.composite
def troubled_pools(draw: st.DrawFn, pool: Deployment, workload: Workload, tiers: int, starts: bool) -> Deployment:
    """A pool in a tier or not, with boundaries to suspend batches at, and prefix store or cache; starts: or off at
    first."""
    table = workload.table
    needed = int((table["prompt_tokens"] + table["output_tokens"] - 1).max())
    blocks = max(pool.total_blocks, -(-needed // pool.block_tokens))  # what is taken back is prefilled with its answer
    operators = st.builds(
        Operators,
        layers=st.integers(1, 3),
        coefficients=st.sampled_from([[[1.0, 0.0, 0.0, 0.0]], [[0.5, 0.1, 0.2, 1.0], [0.0, 0.0, 0.0, 2.0]]]),
        check_s=st.sampled_from([0.0, 1 / 64]),
        jitter_s=st.sampled_from([0.0, 0.0, 1 / 64]),
    )
    load_s = draw(ticks) if pool.host is None else pool.host.load_s_per_token
    return dataclasses.replace(
        pool,
        total_blocks=blocks,
        tier=draw(st.one_of(st.none(), st.integers(0, tiers - 1))),
        operators=draw(st.one_of(st.none(), operators)),
        prefix_caching=draw(st.sampled_from([None, True, False])),
        startup=draw(st.one_of(st.none(), startups(pool.engines))) if starts else None,
        prefix_store=draw(st.one_of(st.none(), st.builds(PrefixStore, st.integers(1, 400), st.just(load_s)))),
        scheduler=draw(st.one_of(st.just(pool.scheduler), any_settings(RANDOM_SCHEDULER))),
    )


@st.composite
def incident_scenarios(draw: st.DrawFn, name: str, all_return: bool = True, engines: int | None = None) -> Scenario:
    """A cluster under the router of this name ("random-router": ours), with incidents.

    engines: of the cluster, if it has to be so many.
    """
    calm = draw(cluster_scenarios("min-load" if name == RANDOM_ROUTER.name else name, MOST_REQUESTS))
    workload = draw(with_prompts(calm.workload))
    tiers = draw(st.one_of(st.none(), st.sampled_from([(0.5,), (0.1, 0.5, 1.0)])))
    cluster = dataclasses.replace(calm.deployment, tiers=tiers)
    if engines == 1:
        pool = dataclasses.replace(cluster.pools[0], engines=1, role="both")
        cluster = dataclasses.replace(cluster, pools=(pool,))
    count = len(cluster.tiers_for(workload))
    pools = tuple(draw(troubled_pools(pool, workload, count, not all_return)) for pool in cluster.pools)
    cluster = Cluster(pools, cluster.link, cluster.signal_delay_s, tiers=tiers)
    scheduler = draw(st.one_of(any_settings(RANDOM_SCHEDULER), st.sampled_from(scheduler_names()).flatmap(policies)))
    return dataclasses.replace(
        calm,
        workload=workload,
        deployment=cluster,
        scheduler=scheduler,
        router=draw(any_settings(RANDOM_ROUTER)) if name == RANDOM_ROUTER.name else calm.router,
        scaler=None if cluster.engines == 1 else draw(st.one_of(st.none(), any_settings(RANDOM_SCALER))),
        incidents=draw(incidents(cluster.engines, all_return)),
    )

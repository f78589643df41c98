"""Settings derived from a scenario: policies with their numbers, tiers, incidents, predictions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from servegym.simulator.compilation.digests import plain_function, reached_kernels
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.features.adapters import adapter_s
from servegym.simulator.features.speculating import speculating
from servegym.simulator.fleet.incidents import to_array as incidents_as_array
from servegym.simulator.fleet.routing import in_turn
from servegym.simulator.fleet.scaling import stay
from servegym.simulator.inputs.cluster import Cluster, cluster_of
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictions
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy

IN_TURN = Policy("in-turn", "router", "Request i goes to engine i mod n.", "", in_turn)
STATIC = Policy("static", "scaler", "Engines stay in their tiers.", "", stay)


class Settings(NamedTuple):
    """What is derived from a scenario, once for all its runs."""

    cluster: Cluster
    schedulers: list[Policy]  # of each pool
    parameters: np.ndarray  # float64[engines, most parameters]
    router: Policy
    router_parameters: np.ndarray  # float64[parameters]
    scaler: Policy
    scaler_parameters: np.ndarray  # float64[parameters]
    interval_s: float  # between the scaler's decisions; 0: there is none
    tiers: np.ndarray  # float64[tiers], TPOT SLOs
    incidents: np.ndarray  # INCIDENT[...]
    predictions: Predictions | None
    # Renumbered from 0 without gaps, so that tables by client or application have no unused rows.
    clients: np.ndarray  # int64[requests]
    applications: np.ndarray  # int64[requests]
    indexed: bool  # whether a policy reads the router's prefix index (Prefixes.sent)


def settings_of(scenario: Scenario, watched: bool) -> Settings:
    """Return the settings of a scenario. watched: a caller reads the router's prefix index too."""
    cluster, table = speculating(cluster_of(scenario.deployment)), scenario.workload.table
    pools = cluster.pools
    router, scaler = scenario.router or IN_TURN, scenario.scaler or STATIC
    facts = scenario.facts_of(pools[0])
    return Settings(
        cluster,
        schedulers_of(scenario, pools),
        numbers_by_engine(scenario, pools),
        router,
        router.numbers(facts),
        scaler,
        scaler.numbers(facts),
        scenario.check_interval_s,
        cluster.tiers_for(scenario.workload),
        incidents_as_array(scenario.incidents, cluster.engines),
        None if scenario.predictor is None else scenario.predictor.predict(scenario.workload),
        without_gaps(clients_of(table)),
        without_gaps(table["application"]),
        watched or any(names_prefixes(policy.function) for policy in (router, scaler)),
    )


def schedulers_of(scenario: Scenario, pools: tuple[Deployment, ...]) -> list[Policy]:
    """Return the scheduler of each pool: its own, or the scenario's."""
    return [pool.scheduler or scenario.scheduler for pool in pools]


def numbers_by_engine(scenario: Scenario, pools: tuple[Deployment, ...]) -> np.ndarray:
    """Return float64[engines, most parameters]: numbers of each engine's scheduler. pools: of `Settings.cluster`."""
    schedulers = schedulers_of(scenario, pools)
    return by_engine(
        pools, [policy.numbers(scenario.facts_of(pool)) for policy, pool in zip(schedulers, pools, strict=True)]
    )


def clients_of(table: np.ndarray) -> np.ndarray:
    """Return int[requests]: the client of each request for policies, or its priority if the table names no clients."""
    return table["client"] if table["client"].any() else table["priority"]


def without_gaps(numbers: np.ndarray) -> np.ndarray:
    """Return int64[requests]: the rank of each number among the distinct ones."""
    if not numbers.any():  # the common case; sorting takes a tenth of an environment's reset
        return np.zeros(len(numbers), "i8")
    return np.unique(numbers, return_inverse=True)[1]


@functools.lru_cache(maxsize=1024)
def names_prefixes(function: Any) -> bool:
    """Return whether a policy may read `known.prefixes`, as keeping that index takes a tenth of a run's time."""
    return JIT_DISABLED or any("prefixes" in one.__code__.co_names for one in reached_kernels(function))


@functools.lru_cache(maxsize=1024)
def names_adapters(function: Any) -> bool:
    """Return whether a policy reads `known.adapters` itself; always False with compilation off.

    `adapter_s`, which is 0 without adapters, does not count.
    """
    if JIT_DISABLED:
        return False
    asked = (one for one in reached_kernels(function) if one is not plain_function(adapter_s))
    return any("adapters" in one.__code__.co_names for one in asked)


def by_engine(pools: tuple[Deployment, ...], numbers: list[np.ndarray]) -> np.ndarray:
    """Return [engines, longest]: the numbers of each engine's pool, padded with zeros."""
    longest = max(len(values) for values in numbers)
    together = np.zeros((sum(pool.engines for pool in pools), longest), numbers[0].dtype)
    first = 0
    for pool, values in zip(pools, numbers, strict=True):
        together[first : first + pool.engines, : len(values)] = values
        first += pool.engines
    return together

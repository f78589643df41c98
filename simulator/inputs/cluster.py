"""Clusters: pools of engines behind one router, and the link that sends KV from prefill to decode engines."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.inputs.deployment import MAX_ENGINES, Deployment
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.signatures import KINDS
from servegym.simulator.records.types import LINK, TIERS


@dataclasses.dataclass(frozen=True)
class Link:
    """The link for KV. A transfer takes latency_s + tokens x bytes_per_token / bytes_per_s.

    shared: one transfer at a time in the whole cluster; else one at a time to each decode engine.
    """

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.bytes_per_token < np.inf:
            raise DeploymentError(f"link: bytes_per_token is {self.bytes_per_token}; it should be 0 or more")
        if not self.bytes_per_s > 0:
            raise DeploymentError(f"link: bytes_per_s is {self.bytes_per_s}; it should be above 0 (inf: no time)")
        if not 0 <= self.latency_s < np.inf:
            raise DeploymentError(f"link: latency_s is {self.latency_s}; it should be 0 or more")

    def to_array(self) -> np.ndarray:
        link = np.zeros(1, LINK)
        link[0].s_per_token = self.bytes_per_token / self.bytes_per_s
        link[0].latency_s, link[0].shared = self.latency_s, self.shared
        return link


AT_ONCE = Link(0.0, np.inf)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Pools of engines behind one router; engines are numbered through the pools in order.

    pools: at most 4. Prefill pools need decode pools, and the reverse; pools that do both may be added or be alone.
    link: between prefill and decode engines.
    signal_delay_s: delay of tokens and reports from engines to the router.
    tiers: TPOT SLOs in s, ascending, at most 8; None: those of the workload (8 evenly spread ones of more).
    """

    pools: tuple[Deployment, ...]
    link: Link = AT_ONCE
    signal_delay_s: float = 0.0
    name: str = "cluster"
    tiers: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.pools) <= KINDS:
            raise DeploymentError(f"{self.name}: {len(self.pools)} pools; there should be 1 to {KINDS}")
        if not 0 <= self.signal_delay_s < np.inf:
            raise DeploymentError(f"{self.name}: signal_delay_s is {self.signal_delay_s}; it should be 0 or more")
        if self.engines > MAX_ENGINES:
            raise DeploymentError(f"{self.name}: {self.engines} engines; there should be at most {MAX_ENGINES}")
        self._check_tiers()
        roles = {pool.role for pool in self.pools}
        if ("prefill" in roles) != ("decode" in roles):
            there, missing = ("prefill", "decode") if "prefill" in roles else ("decode", "prefill")
            raise DeploymentError(f"{self.name}: there is a {there} pool and no {missing} pool; they need each other")

    def _check_tiers(self) -> None:
        tiers = self.tiers
        if tiers is None:
            return
        if not 1 <= len(tiers) <= TIERS or not all(0 < tier < np.inf for tier in tiers):
            raise DeploymentError(f"{self.name}: tiers are {tiers}; there should be 1 to {TIERS}, above 0 and finite")
        if any(later <= earlier for earlier, later in itertools.pairwise(tiers)):
            raise DeploymentError(f"{self.name}: tiers are {tiers}; they should ascend")

    def tiers_for(self, workload: Workload) -> np.ndarray:
        """Return float64[tiers]: TPOT SLOs of the tiers, s. Raises DeploymentError for a pool in an unknown tier."""
        tiers = tiers_in(workload.table) if self.tiers is None else np.array(self.tiers, "f8")
        for pool in self.pools:
            if pool.tier is not None and not 0 <= pool.tier < len(tiers):
                raise DeploymentError(f"{pool.name}: tier is {pool.tier}; there are tiers 0 to {len(tiers) - 1}")
        return tiers

    @property
    def engines(self) -> int:
        """Number of engines in all pools."""
        return sum(pool.engines for pool in self.pools)

    def check_fits(self, workload: Workload, again: bool = False) -> None:
        """Raise DeploymentError if a request does not fit the KV memory of an engine of a pool."""
        for pool in self.pools:
            pool.check_fits(workload, again)


def cluster_of(deployment: Deployment | Cluster) -> Cluster:
    """Return a deployment as a cluster, which has a single pool if its engines are equal."""
    return deployment if isinstance(deployment, Cluster) else Cluster((deployment,), name=deployment.name)


def tiers_in(table: np.ndarray) -> np.ndarray:
    """Return float64[tiers]: the TPOT SLOs in a WORKLOAD table, s, ascending; of more than TIERS an even choice."""
    tiers = np.array(sorted(set(table["tpot_slo_s"].tolist())))  # np.unique would import numpy.ma in 6 ms
    return tiers if len(tiers) <= TIERS else tiers[np.arange(TIERS) * (len(tiers) - 1) // (TIERS - 1)]

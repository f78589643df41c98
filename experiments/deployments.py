"""What serves, from a few numbers: engines of one device side by side, or prefill and decode engines; what fails."""

from __future__ import annotations

import dataclasses
import math

from servegym.baselines.registry import decode_scheduler as find_decode_scheduler
from servegym.experiments.errors import ExperimentError
from servegym.latency_models.profile import Profile
from servegym.simulator.cluster import AT_ONCE, Cluster, Link
from servegym.simulator.deployment import Deployment, HostMemory
from servegym.simulator.errors import DeploymentError
from servegym.simulator.incidents import Incident
from servegym.simulator.policies import Policy
from servegym.simulator.prefixes import PrefixStore
from servegym.simulator.types import INCIDENTS
from servegym.simulator.workload import Workload

LINK_GB_PER_S = 25.0
HOST_GB_PER_S = 25.0
DECODE_SCHEDULER = "vllm-fcfs"


@dataclasses.dataclass(frozen=True)
class Engines:
    """How many engines of a device, and what they do.

    engines: co-located. prefill, decode: disaggregated engines instead of these, at least one of each; 0: none.
    link_gb_per_s: of the link to each decode engine, GB/s. decode_scheduler: of the decode engines, "name:key=value";
    None: `DECODE_SCHEDULER`. The prefill engines have the scheduler of the scenario.
    signal_delay_s: how long tokens and reports of engines are on their way to the router.
    prefix_store_tokens: of host memory of each engine that prefills, for the KV of beginnings of prompts; 0: none.
    host_gb_per_s: how fast KV is loaded from there, GB/s.

    Raises ExperimentError for numbers that do not go together.
    """

    engines: int = 1
    prefill: int = 0
    decode: int = 0
    link_gb_per_s: float = LINK_GB_PER_S
    decode_scheduler: str | None = None
    signal_delay_s: float = 0.0
    prefix_store_tokens: int = 0
    host_gb_per_s: float = HOST_GB_PER_S

    def __post_init__(self) -> None:
        if (self.prefill > 0) != (self.decode > 0):
            there, missing = ("prefill", "decode") if self.prefill else ("decode", "prefill")
            raise ExperimentError(f"there are {there} engines and no {missing} engines; they need each other")
        if self.is_disaggregated and self.engines != 1:
            raise ExperimentError("engines are either co-located, or prefill and decode engines; both are asked for")
        if not self.is_disaggregated and self.decode_scheduler is not None:
            raise ExperimentError("a scheduler of decode engines is given, and there are none")
        if not self.is_disaggregated and self.link_gb_per_s != LINK_GB_PER_S:
            raise ExperimentError("a link between prefill and decode engines is given, and there are none")
        if not 0 < self.link_gb_per_s <= math.inf:
            raise ExperimentError(f"a link of {self.link_gb_per_s:g} GB/s: it should be above 0")
        if self.signal_delay_s > 0 and self.total == 1:
            raise ExperimentError("a delay of signals to the router is given, and one engine, which has no router")
        if not 0 < self.host_gb_per_s <= math.inf:
            raise ExperimentError(f"KV loaded at {self.host_gb_per_s:g} GB/s: it should be above 0")

    @property
    def is_disaggregated(self) -> bool:
        return self.prefill > 0

    @property
    def total(self) -> int:
        """Engines in all."""
        return self.prefill + self.decode if self.is_disaggregated else self.engines

    @property
    def title(self) -> str:
        """How many, in words to go before the name of the device; empty for one."""
        if self.is_disaggregated:
            return f"{self.prefill} prefill + {self.decode} decode x "
        return f"{self.engines} x " if self.engines > 1 else ""

    @property
    def decoding(self) -> Policy | None:
        """Scheduler of the decode engines. Raises PolicyError for an unknown one."""
        return find_decode_scheduler(self.decode_scheduler or DECODE_SCHEDULER) if self.is_disaggregated else None

    def deployment(self, profile: Profile, host: HostMemory | None = None) -> Deployment | Cluster:
        """These engines of a device. Raises PolicyError for an unknown decode scheduler."""
        store = None
        if self.prefix_store_tokens > 0:
            store = PrefixStore(self.prefix_store_tokens, profile.kv.bytes_per_token / (self.host_gb_per_s * 1e9))
        if not self.is_disaggregated:
            pool = dataclasses.replace(profile.deployment(self.engines, host=host), prefix_store=store)
            return pool if self.signal_delay_s == 0 else Cluster((pool,), AT_ONCE, self.signal_delay_s, pool.name)
        prefilling, decoding = profile.deployment(self.prefill, host=host), profile.deployment(self.decode, host=host)
        pools = (
            dataclasses.replace(prefilling, role="prefill", prefix_store=store),
            dataclasses.replace(decoding, role="decode", scheduler=self.decoding),
        )
        link = Link(profile.kv.bytes_per_token, self.link_gb_per_s * 1e9)
        return Cluster(pools, link, self.signal_delay_s, self.title + profile.name)

    def check_serves(self, workload: Workload) -> None:
        """Raise ExperimentError for prefix stores that a workload has nothing for."""
        if self.prefix_store_tokens > 0 and workload.prefixes is None:
            raise ExperimentError(
                f"engines have prefix stores, and the trace of workload '{workload.name}' does not say which prompts "
                "begin alike; it should have prefix blocks, as Mooncake's and Qwen-Bailian's files have"
            )


def with_decode_scheduler(deployment: Deployment | Cluster, scheduler: Policy) -> Deployment | Cluster:
    """The deployment with another scheduler of its decode engines. Raises ExperimentError where there are none."""
    if not isinstance(deployment, Cluster) or all(pool.role != "decode" for pool in deployment.pools):
        raise ExperimentError(
            f"{scheduler.label} is to be the scheduler of decode engines, of which there are none; say --prefill P "
            "--decode D"
        )
    pools = tuple(
        dataclasses.replace(pool, scheduler=scheduler) if pool.role == "decode" else pool for pool in deployment.pools
    )
    return dataclasses.replace(deployment, pools=pools)


def parse_incident(text: str, engines: int) -> Incident:
    """The incident "fail:ENGINE@SECONDS" (or return, drain) of one of so many engines. Raises ExperimentError."""
    kind, _, rest = text.partition(":")
    engine, _, time_s = rest.partition("@")
    right = f"it should be KIND:ENGINE@SECONDS, such as fail:0@60, KIND one of {', '.join(INCIDENTS)}"
    if kind not in INCIDENTS or not engine.isdecimal():
        raise ExperimentError(f"an incident of {text!r}; {right}")
    if int(engine) >= engines:
        raise ExperimentError(f"an incident of {text!r}; engines are numbered 0 to {engines - 1}")
    try:
        return Incident(float(time_s), int(engine), kind)
    except (ValueError, DeploymentError):
        raise ExperimentError(f"an incident of {text!r}; {right}, SECONDS 0 or more") from None

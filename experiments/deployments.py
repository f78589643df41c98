"""What serves, from a few numbers: engines of one device side by side, or prefill and decode engines."""

from __future__ import annotations

import dataclasses
import math

from servegym.baselines.registry import scheduler as find_scheduler
from servegym.experiments.errors import ExperimentError
from servegym.latency_models.profile import Profile
from servegym.simulator.cluster import Cluster, Link
from servegym.simulator.deployment import Deployment, HostMemory
from servegym.simulator.policies import Policy

LINK_GB_PER_S = 25.0
DECODE_SCHEDULER = "vllm-fcfs"


@dataclasses.dataclass(frozen=True)
class Engines:
    """How many engines of a device, and what they do.

    engines: co-located. prefill, decode: disaggregated engines instead of these, at least one of each; 0: none.
    link_gb_per_s: of the link to each decode engine, GB/s. decode_scheduler: of the decode engines, "name:key=value";
    None: `DECODE_SCHEDULER`. The prefill engines have the scheduler of the scenario.

    Raises ExperimentError for numbers that do not go together.
    """

    engines: int = 1
    prefill: int = 0
    decode: int = 0
    link_gb_per_s: float = LINK_GB_PER_S
    decode_scheduler: str | None = None

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
        return find_scheduler(self.decode_scheduler or DECODE_SCHEDULER) if self.is_disaggregated else None

    def deployment(self, profile: Profile, host: HostMemory | None = None) -> Deployment | Cluster:
        """These engines of a device. Raises PolicyError for an unknown decode scheduler."""
        if not self.is_disaggregated:
            return profile.deployment(self.engines, host=host)
        pools = (
            dataclasses.replace(profile.deployment(self.prefill, host=host), role="prefill"),
            dataclasses.replace(profile.deployment(self.decode, host=host), role="decode", scheduler=self.decoding),
        )
        link = Link(profile.kv.bytes_per_token, self.link_gb_per_s * 1e9)
        return Cluster(pools, link, name=self.title + profile.name)

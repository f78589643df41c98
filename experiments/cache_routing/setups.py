"""What is run: sessions on eight engines under vLLM's scheduler, one setup and seed a run, and its figures."""

import dataclasses
import math
from typing import Any, NamedTuple

from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.results import Result

ENGINES = 8
SCHEDULER = "vllm-v1"
ROUTERS = ("round-robin", "min-load", "prefix-affinity", "session-hash", "kv-aware")
BASE = "min-load"
FIGURES = {
    "hit": "hit rate",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "tdg": "TDG ratio",
    "attainment": "SLO attainment",
    "starved": "starved",
    "busiest": "busiest engine's share",
    "overwritten": "overwritten",
}


class Family(NamedTuple):
    """Sessions, and the engines that serve them. rate_per_s: at which ENGINES of the device are saturated uncached."""

    name: str
    device: str
    rate_per_s: float
    requests: int

    @property
    def lasting_s(self) -> float:
        """How long sessions begin; a run is cut off then."""
        return self.requests / self.rate_per_s


class Setup(NamedTuple):
    """What serves a family, and what the router knows.

    events: it is told by KV events what engines have, and does not go by what it sent. delay_s: how late it hears of
    tokens, memory and events. memory: of each engine's KV memory this share.
    """

    family: str
    router: str
    cached: bool = True
    events: bool = False
    delay_s: float = 0.0
    memory: float = 1.0

    @property
    def label(self) -> str:
        """In a table of differences."""
        words = [f"`{self.router}`"]
        words += [] if self.cached else ["not cached"]
        words += ["by events"] if self.events else []
        words += [f"{self.delay_s:g} s late"] if self.delay_s else []
        words += [f"{self.memory:g} of the memory"] if self.memory < 1 else []
        return ", ".join(words)


def spec_of(family: Family, setup: Setup, **more: Any) -> ServingSpec:
    return ServingSpec().replaced(
        trace=family.name, requests=family.requests, rate_per_s=family.rate_per_s, device=family.device,
        engines=ENGINES, prefix_caching="on" if setup.cached else "off", scheduler=SCHEDULER, router=setup.router,
        kv_events=setup.events, signal_delay_s=setup.delay_s, **more,
    )  # fmt: skip


def limited(scenario: Scenario, memory: float, until_s: float) -> Scenario:
    """Engines with a share of their KV memory, up to a time."""
    deployment = scenario.deployment
    if memory < 1:
        deployment = (
            dataclasses.replace(deployment, pools=tuple(_smaller(pool, memory) for pool in deployment.pools))
            if isinstance(deployment, Cluster)
            else _smaller(deployment, memory)
        )
    return dataclasses.replace(scenario, deployment=deployment, until_s=until_s)


def _smaller(pool: Deployment, memory: float) -> Deployment:
    return dataclasses.replace(pool, total_blocks=int(memory * pool.total_blocks))


def row_of(setup: Setup, seed: int, result: Result) -> dict[str, Any]:
    """A run's row: the setup, the seed and `FIGURES`."""
    summary, sent = result.summary, result.requests["engine"].to_numpy()
    blocks = sum(pool.total_blocks * pool.engines for pool in result.scenario.deployment.pools)
    return {
        **setup._asdict(),
        "seed": seed,
        "hit": (summary["cached_share"] or 0.0) if setup.cached else math.nan,
        "ttft_p50_s": summary["ttft_s"]["p50"],
        "ttft_p99_s": summary["ttft_s"]["p99"],
        "tdg": summary["tdg_ratio"],
        "attainment": summary["slo_attainment"],
        "starved": summary["starved"],
        "busiest": max((sent == engine).mean() for engine in range(ENGINES)),
        "overwritten": result.engines["overwritten_blocks"].sum() / blocks,
    }

"""Small scenarios for checks of policies, which exercise the decisions of each kind of policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from servegym.baselines.registry import scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Disturbance
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy

BLOCK_TOKENS = 4
# Some ms a batch, as a small GPU takes: a_p tokens^2, b_p tokens x cached, c_p tokens, a_d cached, b_d decodes, t_c.
MODEL = LatencyModel.from_values(
    "linear", {"a_p": 1e-7, "b_p": 1e-7, "c_p": 1e-4, "a_d": 1e-6, "b_d": 1e-4, "t_c": 5e-3}
)


def small_workload(n: int = 60, seed: int = 0) -> Workload:
    """Return bursts with pauses in which queues run empty, so that queue positions differ from request numbers.

    The last burst has more requests than the packer's first window; there are several clients and classes.
    """
    random = np.random.default_rng(seed)
    n_burst = 2 * n
    arrival_s = np.concatenate([np.zeros(n // 4), 20.0 + np.sort(random.uniform(0, 3, n)), np.full(n_burst, 60.0)])
    size = len(arrival_s)
    batch_class = random.random(size) < 0.2
    return Workload.from_columns({
        "arrival_s": arrival_s,
        "prompt_tokens": random.integers(1, 60, size),
        "output_tokens": random.integers(1, 12, size),
        "priority": random.integers(0, 3, size),
        "weight": random.choice([1.0, 2.0, 4.0], size),
        "ttft_slo_s": random.uniform(0.05, 3.0, size),
        "tpot_slo_s": random.choice([0.02, 0.05, 0.1], size),
        "ttlt_slo_s": np.where(batch_class, 20.0, np.inf),
        "client": random.integers(0, 4, size),
        "application": random.integers(0, 3, size),
        "urgency": random.integers(0, 3, size),
        "predicted_output_tokens": random.uniform(1, 12, size),
    })  # fmt: skip


def pool(
    role: str = "both", engines: int = 1, total_blocks: int = 400, host: int = 0, tier: int | None = None
) -> Deployment:
    return Deployment(
        MODEL, MODEL, total_blocks, engines, block_tokens=BLOCK_TOKENS, role=role, tier=tier,
        host=HostMemory(host, 1e-6, 1e-6) if host else None,
    )  # fmt: skip


SCARCE = 40  # blocks: two and a half of the largest requests


def scenes_for(policy: Policy) -> Iterator[tuple[str, Scenario]]:
    """Yield the description of each scenario, and the scenario."""
    workload, serving = small_workload(), scheduler("vllm-v1")
    split = Cluster((pool("prefill", 2), pool("decode", 2, SCARCE * 2)), Link(1.0, 1e5))
    tiers = (0.02, 0.05, 0.1)
    if policy.kind == "scheduler":
        yield "one engine", Scenario(workload, pool(), policy)
        scarce = Scenario(workload, pool(total_blocks=SCARCE), policy)
        yield "one engine, short of memory", scarce
        noisy = dataclasses.replace(scarce, deployment=pool(total_blocks=SCARCE, host=20), disturbance=Disturbance(0.2))
        yield "one engine with host memory, and noise", noisy
        yield "prefill and decode engines", Scenario(workload, split, policy)
    elif policy.kind == "router":
        yield "three engines", Scenario(workload, pool(engines=3, total_blocks=SCARCE * 2), serving, router=policy)
        late = Cluster((pool(engines=3),), signal_delay_s=0.02, tiers=tiers)
        yield "three engines heard of late", Scenario(workload, late, serving, router=policy)
        yield "prefill and decode engines", Scenario(workload, split, serving, router=policy)
    elif policy.kind == "scaler":
        apart = (pool(engines=2, tier=0), pool(engines=2))
        yield "four engines, three tiers", Scenario(workload, Cluster(apart, tiers=tiers), serving, scaler=policy)

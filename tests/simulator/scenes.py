"""Scenarios in one line: requests that all arrive, a linear model of 1 s + 1 s a token, blocks of one token."""

from typing import Any

from servegym.baselines.registry import scheduler as find_scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from tests.simulator.forming import SECONDS


def requests(**columns: Any) -> Workload:
    """A workload; where nothing is said requests arrive at 0 and have SLOs that are never missed."""
    far = {"arrival_s": 0.0, "output_tokens": 1, "ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0}
    return Workload.from_columns(far | columns)


def scene(
    workload: Workload,
    scheduler: Policy | str = "edf",
    device: LatencyModel = SECONDS,
    total_blocks: int = 1000,
    engines: int = 1,
    gain: Gain | None = None,
    **more: Any,
) -> Scenario:
    policy = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
    deployment = Deployment(device, SECONDS, total_blocks, engines, block_tokens=1, watermark=0.0)
    return Scenario(workload, deployment, policy, gain or Gain(first_weight=1.0), **more)

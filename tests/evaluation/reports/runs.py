"""Recorded runs to report on: worked by hand, and random ones on engines so small that requests are evicted."""

import numpy as np

from servegym.baselines.registry import scheduler as find_scheduler
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene

NAME = '<script>alert("1")</script> & co'


def by_hand() -> Result:
    """A prefill of 4 tokens from 1 to 6 s, token 1; decodes from 6 to 8 and from 8 to 10 s, tokens 2 and 3.

    A batch takes 1 s + 1 s a token, a block holds a token, a token in time is worth 1; the last is late.
    """
    workload = requests(arrival_s=[1.0], prompt_tokens=[4], output_tokens=[3], ttft_slo_s=6.0, tpot_slo_s=1.1)
    return Simulation(scene(workload, total_blocks=10), record_timeline=True).run()


def cramped(scheduler: Policy | str = "edf", engines: int = 1, seed: int = 0, until_s: float = np.inf) -> Result:
    """40 requests on engines of 60 tokens each, two priorities."""
    rng = np.random.default_rng(seed)
    workload = Workload.from_columns(
        {
            "arrival_s": np.sort(rng.uniform(0, 1.5, 40).round(2)), "prompt_tokens": rng.integers(1, 30, 40),
            "output_tokens": rng.integers(1, 30, 40), "priority": rng.integers(0, 2, 40), "ttft_slo_s": 1.0,
            "tpot_slo_s": 0.03,
        },
        name=NAME,
    )  # fmt: skip
    policy = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
    device = linear(c_p=0.001, b_d=0.002, t_c=0.005)
    deployment = Deployment(device, device, 60, engines, block_tokens=1, watermark=0.0)
    scenario = Scenario(workload, deployment, policy, until_s=until_s)
    return Simulation(scenario, record_timeline=True).run()

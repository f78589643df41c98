"""A queue of hundreds: what a batch leaves for the next one saves time, and changes no decision."""

import numpy as np
import pytest

from experiments.behaviour.fingerprint import of_result
from servegym.baselines.registry import scheduler
from servegym.simulator.batching.windows import FIRST_WINDOW
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene

POLICIES = ("sjf", "fastserve-mlfq", "slide-batching", "expected-gain", "flow-prefill:batch_token_budget=64")


def crowd(policy: str) -> Simulation:
    """250 requests, of which half come at once and the others within half a second, with memory for some thirty."""
    rng, n = np.random.default_rng(7), 250
    workload = requests(
        arrival_s=np.sort(np.maximum(rng.uniform(-0.5, 0.5, n), 0.0)),
        prompt_tokens=rng.integers(1, 60, n),
        output_tokens=rng.integers(1, 5, n),
        ttft_slo_s=rng.uniform(0.05, 4.0, n),
        tpot_slo_s=0.05,
        priority=rng.integers(0, 2, n),
    )
    device = linear(t_c=0.001, c_p=0.0002, b_d=0.0001, a_d=1e-6)
    return Simulation(scene(workload, scheduler(policy), device, total_blocks=900), record_timeline=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_last_batch_has_left_changes_no_decision(policy):
    """Whatever it is."""
    as_it_is, other, rng = crowd(policy), crowd(policy), np.random.default_rng(3)
    expected, longest = as_it_is.run(), 0
    while other.step():
        engine, order = other.arrays.engines[0], other.arrays.previous_order[0]
        visits, longest = engine.visits, max(longest, int(engine.queue_length))
        visits.previous_length, visits.bound_tier, visits.bound_key = (
            rng.integers(0, 300),
            rng.integers(-1, 3),
            rng.normal(),
        )
        order[:] = rng.integers(0, 300, len(order))
    assert longest > 2 * FIRST_WINDOW
    assert int(expected.arrays.status[0].finished) == 250
    assert of_result(other.result()) == of_result(expected)

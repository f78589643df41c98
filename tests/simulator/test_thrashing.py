"""A run under a policy without sense ends too: where requests take memory from each other for ever, with an error."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import MOST_FILLINGS
from servegym.simulator.runs.simulation import Simulation
from tests import random_scheduler
from tests.random_scenarios import random_device, random_host, random_latency, random_workload
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

SEEDS = range(200)


def cramped(seed: int) -> Simulation:
    """Ranks that change from batch to batch, any limits, and little memory."""
    random = np.random.default_rng([seed, 1])
    settings = random_scheduler.random_settings(random)
    if seed % 2:
        settings |= random_scheduler.random_tasks(random)
    workload, estimator, device = random_workload(random), random_latency(random)[0], random_device(random)[0]
    longest = int((workload.table["prompt_tokens"] + workload.table["output_tokens"]).max())
    blocks = longest + int(random.integers(0, 200))
    deployment = Deployment(device, estimator, blocks, 1, 1, host=random_host(random, blocks), name="cramped")
    return Simulation(Scenario(workload, deployment, random_scheduler.POLICY.with_settings(**settings)))


def test_every_run_ends_within_so_many_tokens() -> None:
    thrashing = 0
    for seed in SEEDS:
        simulation = cramped(seed)
        try:
            assert simulation.run().summary["finished"] == len(simulation.scenario.workload)
        except PolicyError as error:
            assert "at " in str(error) and "engine 0 (cramped) has computed 100 times what its memory holds" in str(
                error
            )
            assert "under scheduler random-scheduler requests evict each other again and again" in str(error)
            thrashing += 1
        engine = simulation.arrays.engines[0]
        memory_tokens = int(engine.total_blocks * engine.block_tokens)
        last = int(simulation.arrays.sums[0].prefill_tokens + simulation.arrays.sums[0].decode_requests)
        assert engine.iterations <= engine.scheduled_tokens
        assert engine.scheduled_tokens - engine.totals.scheduled_before <= MOST_FILLINGS * memory_tokens + last
    assert 0 < thrashing < len(SEEDS) / 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_computed_and_kept_counts_for_nothing(seed: int) -> None:
    """One large prompt in chunks of a token fills the memory once, however many iterations it takes."""
    random = np.random.default_rng(seed)
    workload = random_workload(random).replace(prompt_tokens=4000)
    model = random_latency(random)[0]
    policy = random_scheduler.POLICY.with_settings(chunk_tokens=1, sequence_budget=1, evict_for=0)
    simulation = Simulation(Scenario(workload, Deployment(model, model, 300_000, block_tokens=1), policy))
    assert simulation.run().summary["finished"] == len(workload)
    assert simulation.arrays.engines[0].iterations > 1000


@pytest.mark.nojit
def test_a_prefill_waits_for_kv_to_leave_with_what_it_has() -> None:
    """A prefill engine of 210 tokens, 205 of them KV for a decode engine that is full until request 0 has ended.
    Request 2 computes 5 tokens, and the rest when there is room."""
    fast, slow = linear(c_p=1e-5, t_c=1e-3), linear(t_c=100.0)
    prefill = Deployment(fast, fast, 210, block_tokens=1, watermark=0.0, role="prefill")
    decode = Deployment(slow, slow, 400, block_tokens=1, watermark=0.0, role="decode")
    workload = requests(arrival_s=[0.0, 10.0, 20.0], prompt_tokens=[200, 205, 100], output_tokens=[200, 2, 2])
    simulation = Simulation(Scenario(workload, Cluster((prefill, decode)), scheduler("vllm-v1")))
    assert simulation.run().summary["finished"] == 3
    engine = simulation.arrays.engines[0]
    assert engine.scheduled_tokens == 200 + 205 + 100 and engine.totals.evictions == 0


@pytest.mark.nojit
def test_what_is_computed_while_kv_is_on_its_way_is_no_thrashing() -> None:
    """A decode engine of 2 blocks: request 0 needs both once it has 26 tokens, and one is taken for the KV of request
    1, which is on its way for 0.3 s. Until then request 0 computes 25 tokens, at 1 ms a batch, again and again."""
    fast = linear(t_c=1e-3)
    prefill = Deployment(fast, fast, 100, watermark=0.0, role="prefill")
    decode = Deployment(fast, fast, 2, block_tokens=25, watermark=0.0, role="decode")
    cluster = Cluster((prefill, decode), Link(bytes_per_token=1.0, bytes_per_s=16.0))
    workload = requests(arrival_s=[0.0, 1.128], prompt_tokens=[18, 5], output_tokens=[10, 2])
    simulation = Simulation(Scenario(workload, cluster, scheduler("vllm-v1")))
    assert simulation.run().summary["finished"] == 2
    assert simulation.arrays.engines[1].scheduled_tokens > MOST_FILLINGS * 50

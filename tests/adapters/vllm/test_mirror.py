"""The mirror plans what the simulator does: the same batches, evictions and times, under every scheduler."""

import numpy as np
import pytest

from servegym.adapters.vllm.mirror import NO_ROWS, Mirror, Plan
from servegym.baselines import registry
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import get_policy, policy_names
from servegym.simulator.runs.simulation import Simulation
from tests.adapters.vllm.mirror_engine import MOST, mirror_of, obey, terms_of
from tests.random_scenarios import random_device, random_latency, random_workload
from tests.seeds import slow_but
from tests.timelines import iterations

registry.load()
# Suspends batches in the middle, which no mirror plans; its own tests are in tests/baselines.
NOT_PREEMPTIBLE = [name for name in policy_names("scheduler") if not get_policy("scheduler", name).state.tasks]
# Variants that read more of a request: when its first token came out.
READING_MORE = ["slide-batching:deadlines=first-token", "slide-batching:variant=xllm"]


def scenario_of(seed: int, name: str) -> Scenario:
    """Small, with little memory: requests are evicted."""
    random = np.random.default_rng(seed)
    workload = random_workload(random)
    table = workload.table
    block_tokens = int(random.choice([1, 16]))
    most = int((table["prompt_tokens"] + table["output_tokens"]).max())
    blocks = -(-most // block_tokens) + int(random.integers(0, 2 * most // block_tokens + 2))
    deployment = Deployment(random_device(random)[0], random_latency(random)[0], blocks, 1, block_tokens, 0.02)
    correction = Correction(0.8, 3) if random.random() < 0.5 else None
    return Scenario(workload, deployment, get_policy("scheduler", name), correction=correction)


@pytest.mark.parametrize("name", slow_but(("vllm-v1", "expected-gain", "qoserve"), NOT_PREEMPTIBLE + READING_MORE))
def test_plans_what_the_simulator_does(name: str) -> None:
    evictions = 0
    for seed in range(12):
        scenario = scenario_of(seed, name)
        result = Simulation(scenario, record_timeline=True).run()
        expected = iterations(result)
        got, mirror = obey(scenario)
        for number, (theirs, ours) in enumerate(zip(expected, got, strict=False)):
            assert ours == theirs, f"seed {seed}, step {number}"
        assert len(got) == len(expected)
        assert mirror.sums[0] == pytest.approx(result.arrays.status[0].gain, rel=1e-12)
        assert mirror.queue_length == 0
        evictions += sum(len(step.evicted) for step in got)
    assert evictions > 0


def test_slots_are_used_again_and_grow() -> None:
    scenario = scenario_of(3, "slide-batching")
    mirror, sent = mirror_of(scenario), scenario.workload.table[0]
    for arrived in range(700):
        mirror.join(mirror.add(0.001 * arrived, 16, 5, 0, terms_of(sent)))
    assert len(mirror.run.requests) == 1024
    queue = mirror.run.queues[0][: mirror.queue_length]
    assert len(set(queue.tolist())) == 700
    assert mirror.run.requests["arrival_s"][queue].tolist() == [0.001 * arrived for arrived in range(700)]
    plan = mirror.plan(1.0, mirror.total_blocks, MOST, MOST, MOST)
    assert plan is not None
    assert plan.tokens.sum() > 0
    mirror.leave(queue[100:].tolist(), finished=True)
    assert mirror.queue_length == 100
    assert len(mirror.free_rows) == 924
    assert len({mirror.add(1.0, 16, 5, 0, terms_of(sent)) for _ in range(924)} | set(queue[:100].tolist())) == 1024


def test_a_prefix_that_requests_share_takes_fewer_blocks_than_they_hold() -> None:
    """vLLM counts shared blocks once: the mirror, which has a block for each, does not run out of them."""
    scenario = scenario_of(3, "vllm-v1")
    mirror, sent = mirror_of(scenario), scenario.workload.table[0]
    tokens = mirror.total_blocks * scenario.deployment.block_tokens
    rows = np.array([mirror.add(0.0, tokens, 5, 0, terms_of(sent)) for _ in range(8)], "i4")
    for row in rows:
        mirror.join(row)
    one, all_tokens = np.ones(8, "i4"), np.full(8, tokens, "i4")
    mirror.settle(rows[:0], rows, one, all_tokens, 0 * one, 0.0)
    engine = mirror.run.engines[0]
    assert mirror.run.requests["blocks"][rows].tolist() == [mirror.total_blocks] * 8
    assert engine.running == 8
    assert engine.free_blocks == mirror.ids - 8 * mirror.total_blocks >= 0
    mirror.leave(rows.tolist(), finished=True)
    assert engine.free_blocks == mirror.ids


def test_an_engine_that_cannot_chunk_takes_prompts_whole_and_each_has_its_turn() -> None:
    """A prompt above the policy's budget runs when nothing is before it in the batch; what is behind it waits."""
    scenario = scenario_of(3, "sarathi-fcfs")
    sent = scenario.workload.table[0]
    plans = {}
    for chunks in (True, False):
        mirror = Mirror(
            get_policy("scheduler", "sarathi-fcfs:max_num_batched_tokens=100"),
            get_policy("scheduler", "sarathi-fcfs:max_num_batched_tokens=100").numbers(scenario.fact),
            scenario.deployment.estimator,
            1000,
            16,
            chunks=chunks,
        )
        rows = [mirror.add(0.001 * n, tokens, 5, 0, terms_of(sent)) for n, tokens in enumerate([30, 250, 40])]
        for row in rows:
            mirror.join(row)
        plans[chunks] = []
        for _ in range(3):
            plan = mirror.plan(1.0, 1000, MOST, MOST, MOST)
            assert plan is not None
            plans[chunks].append([(rows.index(s), n) for s, n in zip(plan.rows, plan.tokens, strict=True)])
            mirror.leave(plan.rows.tolist(), finished=True)
            if mirror.queue_length == 0:
                break
    assert plans[True] == [[(0, 30), (1, 70)], [(2, 40)]]
    assert plans[False] == [[(0, 30)], [(1, 250)], [(2, 40)]]


def test_by_how_much_a_step_differs_from_its_plan() -> None:
    plan = Plan(*np.array([[4, 2, 7], [1, 1, 64], [100, 50, 16]], "i4"), NO_ROWS, False, 0)
    for rows, tokens, cached, expected in (
        ([4, 2, 7], [1, 1, 64], [100, 50, 16], (0, 0)),
        ([7, 4, 2], [64, 1, 1], [16, 100, 50], (0, 0)),  # in another order
        ([4, 2, 7], [1, 1, 60], [100, 50, 32], (4, 1)),
        ([7, 2], [64, 1], [0, 50], (1, 1)),  # one is left out, and one has found nothing
        ([4, 2, 7, 9], [1, 1, 64, 8], [100, 50, 16, 48], (8, 0)),  # one more than was planned
        ([], [], [], (66, 0)),
    ):
        assert plan.differs_by(*(np.array(column, "i4") for column in (rows, tokens, cached))) == expected

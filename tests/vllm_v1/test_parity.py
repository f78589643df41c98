"""vllm-v1 decides what the real vLLM V1 scheduler decided, step by step, on recorded logs (record_steps.py)."""

import gzip
import json
from pathlib import Path

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.timelines import Iteration, iterations

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.json.gz"))


def recorded_iterations(log: dict) -> list[Iteration]:
    """vLLM's steps. One that schedules nothing takes no time: its evictions belong to the step that follows."""
    steps, evicted = [], []
    usable = log["scenario"]["usable_blocks"]
    for step in log["steps"]:
        evicted += step["preempted"]
        if step["scheduled"]:
            batch = [(request, tokens) for request, tokens in step["scheduled"]]
            used = usable - step["free_blocks"]
            steps.append(Iteration(0, step["t"], step["t"] + 1.0, batch, evicted, used))
            evicted = []
    return steps


def simulated_iterations(log: dict) -> list[Iteration]:
    """The same requests through vllm-v1, on a device whose every batch takes one second."""
    scenario, requests = log["scenario"], log["requests"]
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "priority")
    workload = Workload.from_columns({name: [request[name] for request in requests] for name in columns})
    second = linear(t_c=1.0)
    policy = scheduler("vllm-v1").with_settings(
        policy=scenario["policy"], max_num_batched_tokens=scenario["token_budget"],
        max_num_seqs=scenario["max_num_seqs"], reserve_full=int(scenario["reserve_full_isl"]),
        watermark=scenario["watermark"],
    )  # fmt: skip
    deployment = Deployment(second, second, scenario["usable_blocks"], block_tokens=scenario["block_size"])
    simulation = Simulation(Scenario(workload, deployment, policy), record_timeline=True)
    return iterations(simulation.run())


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_same_decisions_as_vllm(fixture: Path) -> None:
    log = json.loads(gzip.decompress(fixture.read_bytes()))
    expected, got = recorded_iterations(log), simulated_iterations(log)
    for number, (theirs, ours) in enumerate(zip(expected, got, strict=False)):
        assert ours == theirs, f"step {number}"
    assert len(got) == len(expected)


@pytest.mark.slow
def test_the_logs_cover_thousands_of_steps_and_hundreds_of_evictions() -> None:
    logs = [json.loads(gzip.decompress(path.read_bytes())) for path in FIXTURES]
    assert sum(len(log["steps"]) for log in logs) >= 4000
    for policy in ("fcfs", "priority"):
        steps = [step for log in logs if log["scenario"]["policy"] == policy for step in log["steps"]]
        assert sum(len(step["preempted"]) for step in steps) >= 100

"""How many drafts are made, by hand (docs/systems/smartspec.md)."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

import servegym
from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.smartspec import acceptance_of, tokens_out
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

DEVICE = "a100-llama3-8b"


def workload(requests: int, output_tokens: int = 200) -> servegym.Workload:
    """All at once."""
    columns = {
        "arrival_s": [0.0] * requests, "prompt_tokens": [64] * requests, "output_tokens": [output_tokens] * requests,
    }  # fmt: skip
    return servegym.Workload.from_columns(columns)


def run(policy: str, requests: int = 2, output_tokens: int = 200, **speculation: float) -> dict:
    drafts = Speculation(**({"k": 4, "acceptance": 0.7} | speculation))
    deployment = dataclasses.replace(load_profile(DEVICE).deployment(), speculation=drafts)
    return Simulation(Scenario(workload(requests, output_tokens), deployment, scheduler(policy))).run().summary


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.0, 3), (0.25, 1), (0.7, 4), (1.0, 8)])
def test_the_acceptance_is_what_explains_the_tokens(acceptance: float, drafts: int) -> None:
    tokens = sum(acceptance**i for i in range(drafts + 1))
    assert tokens_out(acceptance, drafts) == pytest.approx(tokens)
    assert acceptance_of(tokens - 1, drafts) == pytest.approx(acceptance, abs=1e-9)


def test_drafts_that_cost_nothing_are_all_made_and_useless_ones_end() -> None:
    free = run("smartspec", acceptance=1.0, free_verification=True)
    assert free["accepted_share"] == 1.0
    assert free["drafted_tokens"] == run("sarathi-fcfs", acceptance=1.0, free_verification=True)["drafted_tokens"]
    dear = {"acceptance": 0.0, "draft_s": 0.002}
    # A token a batch without drafts; the estimate falls from 0.7 until drafts are not worth their time.
    assert 0 < run("smartspec", **dear)["drafted_tokens"] < 0.5 * run("sarathi-fcfs", **dear)["drafted_tokens"]


def test_a_larger_batch_gets_fewer() -> None:
    few, many = run("smartspec", 1), run("smartspec", 96)
    assert many["drafted_tokens"] / 96 < 0.75 * few["drafted_tokens"]


def test_fixed_drafts_go_up_to_the_parameter_and_the_engine() -> None:
    none, two, eight = (run(f"fixed-drafts:most_drafts={n}")["drafted_tokens"] for n in (0, 2, 8))
    assert none == 0 < two < eight == run("sarathi-fcfs")["drafted_tokens"]


def test_an_agent_says_how_many() -> None:
    env = gym.make(
        "servegym:EngineBatching-v0", scheduler="fixed-drafts", controls=("most_drafts",), trace=("azure-conv",),
        speculation="k=4,acceptance=0.7", requests=20.0,
    )  # fmt: skip
    drafted = {}
    for action in (-1.0, -0.75, 1.0):
        env.reset(seed=3)
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(np.array([action], np.float32))
            over = terminated or truncated
        drafted[action] = int(env.unwrapped.simulation.arrays.engines["totals"]["drafted_tokens"].sum())
    assert drafted[-1.0] == 0 < drafted[-0.75] < drafted[1.0]

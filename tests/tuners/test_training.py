"""Training: what it leaves behind, that it goes on after it was stopped or killed, and what it refuses."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from sb3_contrib import MaskablePPO

from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network
from servegym.baselines.registry import scheduler
from servegym.errors import TrainingError
from servegym.evaluation.running import ThreadRunner
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.actors import actor_layers, network_of
from servegym.tuners.config import load_config, to_text
from servegym.tuners.learners import Annealed
from servegym.tuners.objective import Objective
from servegym.tuners.problem import problem_of
from servegym.tuners.runs import RunFolder
from servegym.tuners.training import train
from servegym.tuners.validation import Judge
from tests.tuners.tiny import CASES, PPO, SCENARIOS, tiny

pytestmark = pytest.mark.slow

ROWS = {
    "steps", "minutes", "policy", "base", "difference", "half_width", "is_best", "attainment",
    "attainment_difference", "attainment_half_width", "wait_s", "wait_difference_s", "score",
}  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_a_training_leaves_a_policy_and_how_it_came_about(name: str, tmp_path: Path) -> None:
    said: list[tuple[float, str]] = []
    config = tiny(name)
    policy = train(config, tmp_path / "run", progress=lambda share, text: said.append((share, text)))
    rollout = config.environments * config.hyperparameters["n_steps"]
    planned = f"{-(-64 // rollout) * rollout:,}"  # a budget of 64, in whole rollouts
    assert said[0][1].startswith(f"0 of {planned} steps") and said[-1][1].startswith(f"{planned} of {planned} steps")
    assert said[-1][0] >= 1.0 and "points of TDG ratio to the base, " in said[-1][1]
    found = load_policy(tmp_path / "run/policy.json")
    assert isinstance(found, LearnedPolicy) and isinstance(policy, LearnedPolicy)
    assert found.network == policy.network
    rows = rows_of(tmp_path / "run")
    assert rows[0]["steps"] == 0 and rows[0]["difference"] == 0 == rows[0]["half_width"]
    assert rows[-1]["steps"] >= 64 and set(rows[-1]) == ROWS
    best = max(rows, key=lambda row: row["policy"])
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 0 < 60 * summary["cpu_minutes"] < time.process_time()
    assert (
        summary["validation"]["policy_tdg_ratio"] == best["policy"] == [r for r in rows if r["is_best"]][-1]["policy"]
    )
    problem = problem_of(config)
    assert Judge(problem.head, problem.validation_source, config.validation).judge(found).policy == best["policy"]
    provenance = json.loads((tmp_path / "run/policy.json").read_text())["provenance"]
    assert provenance["trained_on"] == {
        "traces": ["azure-conv"], "devices": ["a100-llama3-8b"], "loads": [4.0],
        "seeds": [{"first": 0, "last": 999_999}],
    }  # fmt: skip
    assert provenance["versions"]["torch"] == torch.__version__
    assert load_config(tmp_path / "run/config.yaml") == config
    assert (tmp_path / "run/training_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run/tensorboard").glob("events*"))


def test_it_learns(tmp_path: Path) -> None:
    """A base whose batches are too small is led to larger ones."""
    config = tiny(
        "ppo-engine-batching",
        arguments={"scheduler": "sarathi-fcfs:max_num_batched_tokens=96"},
        scenarios=SCENARIOS | {"load": 1.0},
        environments=16,
        budget={"steps": 40_000},
        hyperparameters={"n_steps": 128, "batch_size": 512, "n_epochs": 4, "learning_rate": 0.003, "gamma": 0.995},
        reward_scale=100.0,
        validation={"scenarios": 16, "every_steps": 10_000},
    )
    train(config, tmp_path / "run")
    last = rows_of(tmp_path / "run")[-1]
    assert last["difference"] > 2 * last["half_width"] > 0


def test_the_same_seed_learns_the_same(tmp_path: Path) -> None:
    weights = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tiny("maskable-ppo-cluster-routing", seed=seed), tmp_path / folder)
        found = RunFolder(tmp_path / folder).last_checkpoint()
        assert found is not None
        model = MaskablePPO.load(found[0] / "model.zip", device="cpu")
        weights.append(network_of(actor_layers(model), model.policy.shape).weights)
    assert weights[0] == weights[1] != weights[2]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    config = tiny("ppo-request-ranking")
    train(config, tmp_path)
    before, rows = RunFolder(tmp_path).last_checkpoint(), rows_of(tmp_path)
    assert before is not None
    longer = dataclasses.replace(config, budget=dataclasses.replace(config.budget, steps=200))
    said: list[float] = []
    train(longer, tmp_path, resume=True, progress=lambda share, text: said.append(share))
    after = RunFolder(tmp_path).last_checkpoint()
    assert after is not None
    assert said[0] >= 64 / 200
    assert rows_of(tmp_path)[: len(rows)] == rows and rows_of(tmp_path)[-1]["steps"] >= 200
    assert after[1]["training"].elapsed_s > before[1]["training"].elapsed_s
    assert after[1]["generators"] != before[1]["generators"]  # other episodes were drawn
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_process_is_gone_on_with(how: signal.Signals, tmp_path: Path) -> None:
    config = tiny("ppo-engine-batching", budget={"minutes": 10}, checkpoint_minutes=0.002)
    (tmp_path / "mine.yaml").write_text(to_text(config))
    command = [sys.executable, "-m", "servegym", "train"]
    process = subprocess.Popen(
        [*command, "mine.yaml", "--out", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folder = RunFolder(tmp_path / "run")
    try:
        while process.poll() is None and len(list(tmp_path.glob("run/checkpoints/0*"))) < 2:
            time.sleep(0.02)
        process.send_signal(how)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    found = folder.last_checkpoint()
    assert found is not None
    steps = int(found[0].name)
    assert steps > 0 and stdout == "" and "Traceback" not in stderr
    if how == signal.SIGINT:
        assert process.returncode == 130
        how = "servegym train --resume run continues from the last checkpoint"
        assert stderr.splitlines()[-1] == f"servegym: interrupted: {steps:,} steps are kept; {how}"
    else:
        assert process.returncode == -signal.SIGKILL
    goal = str(steps + 100)
    again = subprocess.run(
        [*command, "--resume", "run", "--steps", goal, "--json", "-"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert steps + 100 <= json.loads(again.stdout)["steps"] < steps + 100 + 2 * 4 * PPO["n_steps"]
    assert rows_of(tmp_path / "run")[0]["steps"] == 0
    assert load_policy(tmp_path / "run/policy.json")


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def fail(draft: Path) -> None:
        (draft / "model.zip").write_text("half of it")
        raise KeyboardInterrupt

    folder.checkpoint(8, {"a": 1}, lambda draft: None)
    with pytest.raises(KeyboardInterrupt):
        folder.checkpoint(16, {"a": 2}, fail)
    path, state = folder.last_checkpoint() or (Path(), {})
    assert (path.name, state) == ("000000000008", {"a": 1})
    for steps in (16, 24, 32):
        folder.checkpoint(steps, {"a": steps}, lambda draft: None)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["000000000024", "000000000032"]


def test_the_learning_rate_falls_with_the_budget() -> None:
    rate = Annealed(1e-3, 1e-4)
    rate.share = 0.5
    assert rate(1.0) == pytest.approx(5.5e-4)
    rate.share = 1.2
    assert rate(1.0) == pytest.approx(1e-4)


def test_it_is_annealed(tmp_path: Path) -> None:
    train(tiny("ppo-engine-batching", hyperparameters=PPO | {"learning_rate_end": 0.0}), tmp_path)
    found = RunFolder(tmp_path).last_checkpoint()
    assert found is not None
    model = stable_baselines3.PPO.load(found[0] / "model.zip", device="cpu")
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4 / 2)  # at the second of two rollouts


def test_it_starts_from_a_policy(tmp_path: Path) -> None:
    problem = problem_of(tiny("maskable-ppo-cluster-routing"))
    network = Network.random(problem.shape, np.random.default_rng(0))
    save_policy(problem.head.policy(network), tmp_path / "first.json", {})
    train(tiny("maskable-ppo-cluster-routing", start=str(tmp_path / "first.json")), tmp_path / "run")
    judge = Judge(problem.head, problem.validation_source, problem.config.validation)
    verdict = judge.judge(problem.head.policy(network))
    assert rows_of(tmp_path / "run")[0]["policy"] == pytest.approx(verdict.policy, abs=1e-6)
    assert abs(verdict.difference) > 1e-3


def test_validation_is_the_mean_over_the_same_scenarios() -> None:
    config = tiny("ppo-engine-batching")
    problem = problem_of(config)
    judge = Judge(problem.head, problem.source, config.validation, ThreadRunner(2), Objective(attainment=2.0, cost=0.1))
    policy = scheduler("edf")

    def figures(policy: Any) -> np.ndarray:
        placed = [dataclasses.replace(scenario, scheduler=policy) for scenario in judge.scenarios]
        runs = [Simulation(scenario).run().summary for scenario in placed]
        return np.array([[run["tdg_ratio"], run["slo_attainment"], run["ttft_s"]["p99"]] for run in runs]).T

    found, base = figures(policy), figures(scheduler("slide-batching:steps=ignore"))
    differences, attained, waited_s = found - base
    verdict = judge.judge(policy)
    assert (verdict.attainment, verdict.wait_s) == pytest.approx(found.mean(axis=1)[1:])
    assert verdict.attainment_difference == pytest.approx(attained.mean())
    assert verdict.attainment_half_width == pytest.approx(1.96 * attained.std(ddof=1) / np.sqrt(3))
    assert verdict.wait_difference_s == pytest.approx(waited_s.mean()) and verdict.wait_difference_s != 0
    assert verdict.difference == pytest.approx(differences.mean()) and verdict.difference != 0
    assert verdict.half_width == pytest.approx(1.96 * differences.std(ddof=1) / np.sqrt(3))
    assert verdict.score == pytest.approx(verdict.policy + 2 * verdict.attainment - 0.1)  # of one engine


def test_equal_scenarios_are_run_once_and_have_no_interval() -> None:
    config = tiny("ppo-engine-batching")
    problem = problem_of(config)
    judge = Judge(problem.head, lambda rng: problem.source(np.random.default_rng(7)), config.validation)
    assert len(judge.scenarios) == 1
    assert judge.judge(scheduler("edf")).half_width == 0.0


@pytest.mark.parametrize(("name", "changes", "problem"), [
    ("ppo-engine-batching", {"environment": "Batching-v0"}, "environment is 'Batching-v0'; it should be one of E"),
    ("ppo-engine-batching", {"algorithm": "maskable-ppo"}, "for EngineBatching-v0 it should be ppo or cma$"),
    ("ppo-request-ranking", {"algorithm": "maskable-ppo"}, "for RequestRanking-v0 it should be ppo or cma$"),
    ("maskable-ppo-cluster-routing", {"algorithm": "ppo"}, "for ClusterRouting-v0 it should be maskable-ppo or cma$"),
    ("ppo-engine-batching", {"objective": {"by_request": True}}, "objective.by_request: EngineBatching-v0 has no"),
    ("maskable-ppo-cluster-routing", {"objective": {"by_request": True}}, "needs discounting over time: horizon_s"),
    ("ppo-engine-batching", {"arguments": {"speed": 3}}, "arguments of EngineBatching-v0: .*speed"),
    ("ppo-engine-batching", {"arguments": {"scenario": 3}}, "arguments.scenario: describe the scenarios under"),
    ("ppo-engine-batching", {"scenarios": {"laod": 1.0}}, "scenarios.laod: unknown field of a spec 'laod'"),
    ("ppo-engine-batching", {"scenarios": SCENARIOS | {"split": "test"}}, "scenarios.split is 'test'"),
    ("ppo-engine-batching", {"hyperparameters": {"n_step": 3}}, "hyperparameters.n_step: unknown to ppo; it has"),
    ("ppo-engine-batching", {"hyperparameters": {"n_steps": "many"}}, "hyperparameters.n_steps is 'many'; it should"),
    ("ppo-engine-batching", {"hyperparameters": {"gamma": [0.9]}}, r"^hyperparameters.gamma is \[0.9\]; it should"),
    ("ppo-engine-batching", {"hyperparameters": {"use_sde": True}}, "hyperparameters.use_sde: unknown to ppo; it has"),
    ("ppo-engine-batching", {"arguments": {"shaping": "x"}}, "^arguments.shaping is 'x'; it should be a number"),
    (
        "ppo-engine-batching",
        {"hyperparameters": {"gamma": "x"}, "arguments": {"shaping": 0.1}},
        "^hyperparameters.gamma is 'x'; it should be a number from 0 to 1",
    ),
    (
        "ppo-engine-batching",
        {"environment": "DisaggregatedRouting-v0", "scenarios": {"prefill": 1, "decode": 1, "engines": 1},
         "arguments": {"prefill": 1, "decode": 1}},
        "DisaggregatedRouting: no compiled policy makes its decisions; train in one of EngineBatching",
    ),
])  # fmt: skip
def test_what_cannot_be_trained(name: str, changes: dict, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=problem) as caught:
        train(tiny(name, **changes), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not os.path.exists(tmp_path / "run")


@pytest.mark.parametrize("name", ["ppo-engine-batching", "maskable-ppo-cluster-routing"])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_steps_that_are_too_large_are_told(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny(name, hyperparameters=PPO | {"learning_rate": 1e30}), file="mine.yaml")
    message = (
        r"^mine.yaml: hyperparameters.learning_rate is 1e\+30; it should be lower: after \d+ steps weights are above"
    )
    with pytest.raises(TrainingError, match=message):
        train(config, tmp_path / "run")


def test_folders_that_are_not_for_it(tmp_path: Path) -> None:
    config = tiny("ppo-engine-batching")
    with pytest.raises(TrainingError, match="has no training to continue"):
        RunFolder(tmp_path).config()
    RunFolder(tmp_path).begin(config)
    with pytest.raises(TrainingError, match=r"has a training; --resume .* continues it"):
        train(config, tmp_path)


def test_the_configuration_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/training_reference.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.yaml").write_text(block.replace("start:", "# start:"))
    config = load_config(tmp_path / "mine.yaml")
    assert config.environment == "Scheduling-v0"
    problem = problem_of(dataclasses.replace(config, environments=2))
    assert problem.head.base.name == "vllm-v1"

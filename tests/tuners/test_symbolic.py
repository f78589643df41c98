"""Symbolic training: it begins at the base, goes on where it was stopped, and what it finds is a policy like any."""

import dataclasses
import json

import pytest

pytest.importorskip("stable_baselines3")

from servegym.baselines.learned.artifact import load
from servegym.errors import TrainingError
from servegym.tuners import symbolic
from servegym.tuners.config import BudgetConfig, TrainingConfig, ValidationConfig
from servegym.tuners.outcome import Stopped
from servegym.tuners.runs import RunFolder
from tests.tuners.test_evolution import Interrupted

CONFIG = TrainingConfig(
    "RequestRanking-v0",
    "symbolic",
    arguments={"scheduler": "expected-gain"},
    scenarios={"requests": 40, "load": 3.0, "slo_scale": 0.5, "trace": ["sharegpt"]},
    environments=1,
    hyperparameters={"population": 6, "scenarios": 2, "most_nodes": 9, "formulas": ["next_gain / exec_s"]},
    budget=BudgetConfig(steps=36),
    validation=ValidationConfig(scenarios=3, every_steps=12),
    name="small",
)


def test_it_begins_at_the_base_and_what_it_finds_is_a_policy(tmp_path):
    policy = symbolic.train(CONFIG, tmp_path / "straight")
    rows = [json.loads(line) for line in (tmp_path / "straight" / "curve.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [0, 12, 24, 36]
    assert rows[0]["formula"] == "value" and rows[0]["difference"] == 0.0
    best = max(rows, key=lambda row: row["policy"])
    summary = json.loads((tmp_path / "straight" / "summary.json").read_text())
    assert summary["formula"] == policy.formula == best["formula"] and "weights" not in summary
    assert load(tmp_path / "straight" / "policy.json").weights == policy.weights
    # Stopped and gone on with, it finds the same.
    with pytest.raises(Stopped):
        symbolic.train(CONFIG, tmp_path / "stopped", progress=Interrupted(2))
    resumed = symbolic.train(RunFolder(tmp_path / "stopped").config(), tmp_path / "stopped", resume=True)
    assert resumed.formula == policy.formula


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hyperparameters": {"population": 2}}, "hyperparameters.population is 2; it should be 4 or more"),
        ({"hyperparameters": {"elites": 24}}, "hyperparameters.elites is 24; it should be 0 to 23"),
        ({"hyperparameters": {"most_nodes": 300}}, "most_nodes is 300; it should be 3 to 255"),
        ({"hyperparameters": {"formulas": ["exec"]}}, "hyperparameters.formulas: formula: there is no exec"),
        ({"environment": "EngineBatching-v0"}, "environment is 'EngineBatching-v0'; it should be RequestRanking-v0"),
        ({"start": "policy.json"}, "start is 'policy.json'; hyperparameters.formulas says"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(changes, said, tmp_path):
    with pytest.raises(TrainingError, match=said):
        symbolic.train(dataclasses.replace(CONFIG, **changes), tmp_path / "none")
    assert not (tmp_path / "none").exists()

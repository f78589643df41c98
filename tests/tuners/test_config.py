"""Configurations: those that ship, that they are written and read back, and what is refused."""

from pathlib import Path

import pytest

from servegym.errors import TrainingError
from servegym.tuners.config import BudgetConfig, config_names, load_config, to_text

BASE = {
    "environment": "EngineBatching-v0", "algorithm": "ppo", "budget": "{steps: 10}",
}  # fmt: skip


def written(path: Path, **changes: str | None) -> Path:
    """A file with the lines of BASE, some of them changed or left out."""
    lines = {key: value for key, value in (BASE | changes).items() if value is not None}
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


@pytest.mark.parametrize("name", config_names())
def test_what_ships_can_be_read_and_written(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.name == name
    assert name.startswith(config.algorithm)
    copy = tmp_path / "copy.yaml"
    copy.write_text(to_text(config))
    assert load_config(copy) == config


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    assert load_config(written(tmp_path / "a.yaml", reward_scale="1e2")).reward_scale == 100.0


def test_either_budget_replaces_the_other(tmp_path: Path) -> None:
    config = load_config(written(tmp_path / "a.yaml"))
    assert config.replaced(minutes=2.0, seed=None).budget == BudgetConfig(minutes=2.0)
    assert config.replaced(seed=4).budget == BudgetConfig(steps=10)
    assert config.replaced(seed=4).seed == 4


@pytest.mark.parametrize(("changes", "problem"), [
    ({"environment": None}, "environment is missing"),
    ({"environment": "3"}, "environment is 3; it should be a text"),
    ({"speed": "3"}, "speed: unknown key; known are environment, algorithm,"),
    ({"algorithm": "dqn"}, "algorithm is 'dqn'; it should be one of ppo, maskable-ppo, cma, bc"),
    ({"environments": "4.5"}, "environments is 4.5; it should be a whole number"),
    ({"environments": "0"}, "environments is 0; it should be 1 or more"),
    ({"environments": "true"}, "environments is True; it should be a whole number"),
    ({"network": "{hidden: 64}"}, "network.hidden is 64; it should be a list"),
    ({"network": "{hidden: [64, wide]}"}, "network.hidden[1] is 'wide'; it should be a whole number"),
    ({"network": "{layers: 2}"}, "network.layers: unknown key; known are hidden,"),
    ({"network": "[64]"}, "network is [64]; it should be keys with values"),
    ({"network": "{activation: gelu}"}, "network.activation is 'gelu'; it should be one of tanh, relu"),
    ({"budget": "{}"}, "budget is {'steps': None, 'minutes': None}; it should be steps or minutes, or both"),
    ({"budget": "{minutes: soon}"}, "budget.minutes is 'soon'; it should be a number"),
    ({"validation": "{scenarios: 1}"}, "validation.scenarios is 1; it should be 2 or more"),
    ({"validation": "{every_steps: 0}"}, "validation.every_steps is 0; it should be 1 or more"),
    ({"validation": "{every_minutes: 0}"}, "validation.every_minutes is 0.0; it should be above 0"),
    ({"validation": "{first_seed: 0}"}, "validation.first_seed is 0; it should be 1 or more"),
    ({"budget": "{minutes: .inf}"}, "budget.minutes is inf; it should be above 0, and finite"),
    ({"checkpoint_minutes": ".inf"}, "checkpoint_minutes is inf; it should be above 0, and finite"),
    ({"seed": "4294967296"}, "seed is 4294967296; it should be from 0 to 4294967295"),
    ({"file": "a.yaml"}, "file: unknown key; known are environment, algorithm,"),
    ({"hyperparameters": "3"}, "hyperparameters is 3; it should be keys with values"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(changes: dict, problem: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.yaml", **changes)
    with pytest.raises(TrainingError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"unknown training 'mine'; there are: .*ppo-s.*, or name a YAML file"):
        load_config("mine")
    with pytest.raises(
        TrainingError, match=r"there is no file .*none\.yaml; it should be a YAML file with environment"
    ):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(TrainingError, match=r"list\.yaml should be a mapping with environment and algorithm"):
        load_config(tmp_path / "list.yaml")

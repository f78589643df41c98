"""Hyperparameters of PPO: what makes no sense is refused, by key and value, before the libraries see it."""

import inspect
import math
from typing import Any

import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO

from servegym.errors import TrainingError
from servegym.tuners.config import TrainingConfig, from_plain
from servegym.tuners.ppo_settings import ALLOWED, END, OVER_TIME, checked

SENSELESS = ([1], ["x"], "x", "", -1, -0.5, math.nan, math.inf, {}, {"a": 1}, [])
OPTIONAL = ("clip_range_vf", END, "target_kl")


def settings_of(**hyperparameters: Any) -> dict[str, Any]:
    document = {"environment": "Scheduling-v0", "algorithm": "ppo", "budget": {"steps": 1}}
    return checked(from_plain(TrainingConfig, document | {"hyperparameters": hyperparameters}, ""))


def test_each_is_one_of_the_libraries_or_of_ours() -> None:
    for kind in (PPO, MaskablePPO):
        assert set(ALLOWED) - {END, *OVER_TIME} < set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("value", [*SENSELESS, None])
@pytest.mark.parametrize("name", ALLOWED)
def test_what_makes_no_sense_is_refused_by_name_and_value(name: str, value: Any) -> None:
    if value is None and name in OPTIONAL:
        assert settings_of(**{name: None}) == {name: None}
        return
    times = dict.fromkeys(OVER_TIME, 1.0) if name in OVER_TIME else {}
    with pytest.raises(TrainingError) as caught:
        settings_of(**times | {name: value})
    assert str(caught.value).startswith(f"hyperparameters.{name} is {value!r}; it should be ")


@pytest.mark.parametrize(("name", "value", "right"), [
    ("batch_size", 1, "a whole number, 2 or more"),
    ("clip_range_vf", 0, "a number above 0, or null"),
    ("gamma", 1.5, "a number from 0 to 1"),
    ("learning_rate", True, "a number above 0"),
    ("n_steps", 2.5, "a whole number, 1 or more"),
    ("n_epochs", 0, "a whole number, 1 or more"),
    ("normalize_advantage", 1, "true or false"),
    ("vf_coef", -1e-9, "a number, 0 or more"),
])  # fmt: skip
def test_what_is_right_is_said(name: str, value: Any, right: str) -> None:
    with pytest.raises(TrainingError) as caught:
        settings_of(**{name: value})
    assert str(caught.value) == f"hyperparameters.{name} is {value!r}; it should be {right}"


def test_what_makes_sense_has_its_type() -> None:
    given = {"learning_rate": "3e-4", "gamma": 1, "n_steps": 64, "normalize_advantage": False, "target_kl": 0.03}
    assert settings_of(**given) == given | {"learning_rate": 3e-4}
    assert isinstance(settings_of(gamma=1)["gamma"], float)

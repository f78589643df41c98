"""What there is to win in environments: the page's tables and `env.unwrapped.headroom` are what was measured."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from experiments.environments import headroom
from experiments.environments.headroom import EPISODES, Rules, measured, measured_presets, tables, write_page
from servegym.baselines import registry
from servegym.envs.registration import DEFAULT, headroom_of
from servegym.envs.registration import measured_headroom as known
from tests.envs.small import IDS, make

PAGE = Path(__file__).parents[2] / "docs/results/environments.md"


def test_the_tables_of_the_page_are_what_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    write_page(page, known())
    assert page.read_text("utf-8") == PAGE.read_text("utf-8"), "make docs"
    assert f"on {EPISODES} episodes" in page.read_text("utf-8") and known()["episodes"] == EPISODES


@pytest.mark.parametrize("name", IDS)
def test_every_preset_of_an_environment_has_been_measured(name: str) -> None:
    rooms = gym.make(f"servegym:{name}").unwrapped.headroom
    assert rooms == headroom_of(name) and set(rooms) == {DEFAULT, *measured_presets(name)}
    for room in rooms.values():
        assert 0 < room["base"] <= room["found"] <= 1 and room["random"] <= room["found"] >= room["rule"]
        assert room["found_minus_base"][0] == pytest.approx(room["found"] - room["base"], abs=2e-4)


def test_of_an_environment_of_ones_own_nothing_is_known() -> None:
    env = make("EngineBatching-v0")
    env.__class__ = type("Mine", (type(env),), {})
    assert env.headroom == {}


def test_the_best_rule_is_chosen_on_other_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules, of which one is better in the one split and the other in the other."""
    names = ("edf", "vllm-v1")
    monkeypatch.setattr(headroom, "rules_of", lambda role: {name: registry.scheduler(name) for name in names})
    monkeypatch.setattr(headroom, "searched", lambda scenario, budget: 0.0)
    gained = {
        ("edf", "validation"): 0.9,
        ("edf", "test"): 0.2,
        ("vllm-v1", "validation"): 0.1,
        ("vllm-v1", "test"): 0.8,
    }

    def ratios_of(scenarios, role, policy):
        return np.full(len(scenarios), gained[policy.name, scenarios[0].workload.provenance["split"]])

    monkeypatch.setattr(headroom, "ratios_of", ratios_of)
    room = measured("EngineBatching-v0", "overload", Rules(2, 1))
    assert (room["best_rule"], room["rule"]) == ("edf", 0.2) and room["found"] >= 0.8
    assert "| `overload` |" in tables({"environments": {"EngineBatching-v0": {"overload": room}}})

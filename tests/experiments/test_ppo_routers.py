"""The study of MaskablePPO upon two routers: what is trained, and what its tables say of curves and of fresh seeds."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

from experiments import ppo_arms, ppo_routers
from experiments.ppo_arms import ARMS, COST, LONG, MIXED, SESSIONS, TIMES, TRIED, Trained, config_of
from experiments.ppo_routers import ATTAINMENT, CMA, TDG
from servegym.tuners.config import load_config


def trained(arm=ARMS[1], differences=((0.01, 0.03), (0.03, 0.05))) -> Trained:
    """Trainings with these differences of attainment at 100 and 200 decisions; of TDG a tenth of them."""
    curves = []
    for one in differences:
        rows = [(0, 0.0), *zip((100, 200), one, strict=True)]
        curves.append([{"steps": n, "attainment_difference": d, "difference": d / 10} for n, d in rows])
    names = [ppo_routers.Path(f"runs/{arm.name}-{seed}/policy.json") for seed in range(len(differences))]
    return Trained(arm, curves, [1.0, 2.0][: len(differences)], names)


def outcomes(one: Trained) -> dict[str, np.ndarray]:
    """Of all routers, float64[2 scenarios, figures]; those trained attain 0.02 and 0.04 more than their base."""
    figures = np.zeros((2, 5))
    figures[:, TDG], figures[:, ATTAINMENT] = (0.90, 0.92), (0.80, 0.84)
    found = dict.fromkeys(ppo_routers.routers(), figures - 0.1) | {COST: figures, CMA: figures + 0.05}
    return found | {path.parent.name: figures + more for path, more in zip(one.policies, (0.02, 0.04), strict=True)}


def test_every_arm_is_a_training_of_its_own() -> None:
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    config = config_of(ARMS[1], 3, None)
    assert (config.scenarios["router"], config.seed, config.network.base_bias) == (COST, 3, 6.0)
    mixed = config_of(next(arm for arm in ARMS if arm.place == MIXED), 0, None)
    assert mixed.arguments["preset"] == MIXED and "rate_per_s" not in mixed.scenarios
    assert mixed.hyperparameters["n_steps"] * mixed.environments * 5 == mixed.budget.steps
    assert config_of(ARMS[0], 0, 500).budget.steps == 500
    assert config_of(next(arm for arm in ARMS if arm.change == LONG), 0, 500).budget.steps == 500 * TIMES


def test_the_recipe_that_ships_has_the_decisions_of_the_long_trainings() -> None:
    long = next(arm for arm in ARMS if arm.change == LONG and arm.place == SESSIONS)
    assert config_of(long, 0, None).budget == load_config(ppo_arms.CONFIG).budget


def test_a_curve_is_over_trainings() -> None:
    steps, intervals = trained().over_steps("attainment_difference")
    assert steps == [0, 100, 200]
    assert [one.mean for one in intervals] == pytest.approx([0, 0.02, 0.04])
    assert intervals[1].half_width == pytest.approx(12.706 * 0.01, rel=1e-3)  # t of one degree of freedom
    row = ppo_routers.curves_table([trained()]).splitlines()[-1]
    assert row.endswith("| 2 | 200 | +0.020 ± 0.127 | +0.040 ± 0.127 | +0.0040 ± 0.0127 | 1.5 |")


def test_differences_are_on_the_same_scenarios() -> None:
    one = trained()
    found = outcomes(one)
    assert ppo_routers.best_heuristic(found, ATTAINMENT) == COST
    assert ppo_routers.less(found, one, COST, ATTAINMENT).mean == pytest.approx(0.03)
    assert ppo_routers.less(found, one, CMA, TDG).mean == pytest.approx(-0.02)
    row = ppo_routers.places_table({SESSIONS: found}, [one]).splitlines()[-1]
    assert row.startswith(
        f"| `{COST}`, {SESSIONS} | 0.850 | +0.030 ± 0.127 | +0.030 ± 0.127 | -0.020 ± 0.127 | 0.9400 |"
    )
    assert f"upon `{COST}`" in ppo_routers.routers_table(found, [one]).splitlines()[3]  # behind CMA-ES's alone


def test_the_section_of_later_routers_is_written_in_place_of_the_one_before(monkeypatch) -> None:
    """That of the page comes out again, but for the figures, and nothing else changes."""
    text = (Path(__file__).parents[2] / "docs/results/ppo-routers.md").read_text("utf-8")
    earlier = text.partition(ppo_routers.LATER)[2].partition(ppo_routers.NEXT)[0]
    names = ["lost-gain", "learned:session-fleet", "learned:mixed-fleet"]

    def by_router(policies, scenarios):
        assert list(policies) == names
        return {name: np.full((2, 5), 0.5 + i / 10) for i, name in enumerate(policies)}

    monkeypatch.setattr(ppo_routers, "by_router", by_router)
    monkeypatch.setattr(ppo_routers, "judging_scenarios", lambda place: [])
    section = ppo_routers.later_section(names)
    written = ppo_routers.with_later(text, section)
    rows = [line for line in section.splitlines() if line.startswith(("| session-fleet", "| mixed-fleet"))]
    assert [row.split(" | ")[1] for row in rows] == [f"`{name}`" for name in names[::-1]] * 2
    assert "0.7000" in rows[0] and section.split("| where")[0] == f"{ppo_routers.LATER}{earlier.split('| where')[0]}"
    assert written.replace(section, "") == text.replace(ppo_routers.LATER + earlier, "")
    assert ppo_routers.with_later(written, section) == written
    without = text.replace(ppo_routers.LATER + earlier, "")
    assert ppo_routers.with_later(without, section) == written


def test_what_is_there_is_not_trained_again(tmp_path, monkeypatch) -> None:
    done = []

    def train(config, run):
        done.append(run.name)
        run.mkdir(parents=True)
        (run / "summary.json").write_text(json.dumps({"cpu_minutes": 1.0}))
        (run / "curve.jsonl").write_text(json.dumps({"steps": 0, "attainment_difference": 0.0, "difference": 0.0}))

    monkeypatch.setattr(ppo_arms, "train", train)
    changed = next(arm for arm in ARMS if arm.change)
    for _ in range(2):
        found = list(ppo_arms.trained([ARMS[0], changed], tmp_path, 2, None))
    assert done == [f"{ARMS[0].name}-0", f"{ARMS[0].name}-1", f"{changed.name}-{TRIED}"]
    assert [len(one.curves) for one in found] == [2, 1]

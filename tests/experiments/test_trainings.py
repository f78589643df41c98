"""The page of shipped trainings: what counts as learned, and that none is shown which was ended early."""

import json
from pathlib import Path

import pytest
import yaml

from experiments.trainings import main, read
from servegym.tuners.config import config_names, load_config

VERSIONS = {"servegym": "0.1.0", "machine": "a machine", "cores": "2"}


def row(steps, difference, half_width, is_best):
    measured = {"base": 0.9, "difference": difference, "half_width": half_width, "attainment_difference": 0.02}
    return {"steps": steps, "is_best": is_best, **measured, "wait_difference_s": -3.25}


def write(folder, name, curve, budget=100):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"budget": {"steps": budget}}))
    summary = {"training": name, "base": "min-load", "steps": curve[-1]["steps"], "minutes": 1.5, "cpu_minutes": 2.25}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "versions.json").write_text(json.dumps(VERSIONS))
    (folder / "curve.jsonl").write_text("\n".join(map(json.dumps, curve)))


BASE = row(0, 0.0, 0.0, True)


@pytest.mark.parametrize(
    "curve, learned",
    [
        ([BASE, row(100, -0.02, 0.01, False)], False),  # the base stays the best
        ([BASE, row(100, 0.005, 0.008, True)], False),  # chance
        ([BASE, row(50, 0.03, 0.01, True), row(100, -0.01, 0.01, False)], True),  # the best counts, not the last
    ],
)
def test_what_is_learned_is_told_from_chance(curve, learned, tmp_path):
    write(tmp_path / "runs" / "one", "one", curve)
    assert read(tmp_path / "runs" / "one").learned == learned


def test_a_page_and_its_picture(tmp_path):
    write(tmp_path / "runs" / "one", "one", [BASE, row(100, -0.02, 0.01, False)])
    write(tmp_path / "runs" / "two", "two", [BASE, row(100, 0.04, 0.01, True)])
    page = tmp_path / "docs" / "results" / "trainings.md"
    page.parent.mkdir(parents=True)
    main(tmp_path / "runs", page)
    text = page.read_text()
    assert "1 of 2 learn something (two)" in text
    best, last = "+0.0000 | +0.020 | -3.2", "-0.0200 ± 0.0100"
    assert f"| `one` | `min-load` | 0.9000 | 100 | 1.5 | 2.2 | 0 | {best} | {last} | **no** |" in text
    assert (tmp_path / "docs" / "images" / "trainings.png").stat().st_size > 1000


def test_a_training_that_was_ended_early_is_refused(tmp_path):
    write(tmp_path / "one", "one", [BASE, row(99, 0.1, 0.01, True)])
    with pytest.raises(ValueError, match=r"ended after 99 steps; its budget should be run to the end \(100\)"):
        read(tmp_path / "one")


def test_the_pages_of_the_project_have_every_configuration_with_a_budget_of_steps():
    results = Path(__file__).parents[2] / "docs" / "results"
    others = ("learned-mixed-fleet", "learned-session-fleet", "pd-ratio", "ppo-routers", "scaler-day")
    pages = [*results.glob("trainings*.md"), *(results / f"{name}.md" for name in others)]
    shown = "".join(page.read_text() for page in pages)
    shipped = {name for name in config_names() if load_config(name).budget.steps is not None}
    missing = {name for name in shipped if f"| `{name}` |" not in shown and f"    servegym train {name}" not in shown}
    assert missing == set()

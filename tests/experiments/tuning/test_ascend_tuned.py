"""Settings tuned on Ascend, served again at both ends of the device."""

import re
from pathlib import Path

import pandas as pd
import pytest

from experiments.tuning import ascend_tuned
from experiments.tuning.ascend_tuned import ABOVE, BELOW, ENDS, STUDIES, UNDECIDED
from servegym.baselines import registry
from servegym.evaluation.intervals import Interval
from servegym.tuners.studies.reading import load_tuning

PAGE = Path(__file__).parents[3] / "docs" / "results" / "tuning-proserve-ascend.md"


def as_on_the_page(text: str) -> str:
    """The settings of the page, whose batches ended nowhere in particular."""
    return text.replace(",steps=ignore", "").replace(":steps=ignore", "")


@pytest.mark.parametrize("name", STUDIES)
def test_settings_are_those_that_the_tuning_found(name):
    _, tuned = STUDIES[name]
    section = PAGE.read_text("utf-8").partition(f"### {name}\n")[2]
    scheduler, router = re.search(r"Winner: scheduler `(.*?)`, router `(.*?)`", section).groups()
    assert (as_on_the_page(tuned.scheduler), tuned.router) == (scheduler, router)


@pytest.mark.parametrize("name", STUDIES)
def test_defaults_are_those_of_the_study(name):
    defaults, _ = STUDIES[name]
    study = load_tuning(ascend_tuned.TUNING).studies[name]
    assert as_on_the_page(defaults.scheduler) == as_on_the_page(study.scheduler)
    assert defaults.router == (study.router or "min-load")
    if "steps" in registry.scheduler(study.scheduler).chosen():
        assert registry.scheduler(defaults.scheduler).chosen()["steps"] == "ignore"


def test_panels_are_those_of_the_tuning_on_other_devices():
    config = load_tuning(ascend_tuned.TUNING)
    files = [{end: f"{device}-{end}.json" for end in ENDS} for device in config.test.devices]
    found = {(end, which): panel for end, which, panel in ascend_tuned.panels_of(files, 9, config.test.requests)}
    assert set(found) == {(end, which) for end in ENDS for which in ("validation", "test")}
    for (end, which), panel in found.items():
        own = getattr(config, which)
        assert (panel.traces, panel.loads, panel.seeds, panel.first_seed, panel.requests) == (
            own.traces, own.loads, own.seeds, own.first_seed, own.requests,
        )  # fmt: skip
        assert panel.devices == tuple(f"{device}-{end}.json" for device in own.devices)
    (_, _, looked_at), *_ = ascend_tuned.panels_of(files, 1, 50)
    assert (looked_at.seeds, looked_at.requests) == (1, 50)


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high)


def test_a_sign_that_differs_or_is_not_told_is_undecided():
    above, below, neither = interval(0.1, 0.2), interval(-0.2, -0.1), interval(-0.1, 0.2)
    assert ascend_tuned.over_the_interval([above, above]) == ABOVE
    assert ascend_tuned.over_the_interval([below, below]) == BELOW
    assert ascend_tuned.over_the_interval([above, below]) == UNDECIDED
    assert ascend_tuned.over_the_interval([above, neither]) == UNDECIDED
    found = {end: dict.fromkeys(STUDIES, above if end == "fast" else below) for end in ENDS}
    lines = list(ascend_tuned.table(found))
    assert len(lines) == 2 + len(STUDIES) and all(UNDECIDED in line for line in lines[2:])


def test_a_lead_is_of_the_winner_over_the_defaults_on_the_same_runs(monkeypatch):
    def runs(panel, served, title):
        """As many more as the router's name is long; a cell more than the other, a seed more than the other."""
        cells = [(trace, seed) for trace in ("one", "two") for seed in (1, 2)]
        return {
            one: pd.DataFrame([
                {"trace": trace, "device": "d", "load": 1.0, "seed": seed,
                 ascend_tuned.FIGURE: 0.1 * seed + 0.2 * (trace == "two") + 0.3 * (":" in one.router)}
                for trace, seed in cells
            ])
            for one in served
        }  # fmt: skip

    monkeypatch.setattr(ascend_tuned, "runs", runs)
    found = ascend_tuned.leads(None, "")
    assert found["engine"].mean == pytest.approx(0.3) and found["engine"].high - found["engine"].low < 1e-9
    assert found["qoserve"].mean == pytest.approx(0.0)

"""Tunings as files: their keys are read, and errors are one line."""

import pytest

from servegym.errors import TuningError
from servegym.evaluation.shipped_files import names_in
from servegym.tuners.search.choosing import Range
from servegym.tuners.studies.config import seeds_of
from servegym.tuners.studies.reading import STUDIES, load_tuning, parse_tune, parse_tuning
from servegym.tuners.studies.search import Search
from tests.tuners.studies.small import DOCUMENT, small

SEEDS_ONLY = {"session-fleet", "scaler-day"}  # tested on the trace they are tuned on, with other seeds


@pytest.mark.parametrize("name", names_in(STUDIES))
def test_those_that_ship_can_be_searched_and_have_seeds_of_their_own(name):
    config = load_tuning(name)
    for study in config.studies:
        assert Search(config, study).space.names
    panels = [seeds_of(panel) for panel in (config.panel, config.validation, config.test)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not set(panels[one]) & set(panels[other])
    assert name in SEEDS_ONLY or not set(config.test.traces) & set(config.panel.traces)
    assert "ypothes" in config.description


def test_validation_and_test_are_the_panel_but_for_what_they_say():
    config = small()
    assert config.validation.traces == config.panel.traces and config.validation.seeds == 3
    assert config.test.loads == config.panel.loads == (1.4, 3.0) and config.test.traces == ("azure-code",)
    assert [panel.first_seed for panel in (config.panel, config.validation, config.test)] == [0, 500_000, 1_000_000]


def test_ranges_in_a_file():
    tune = {"gamma": None, "eta": {"low": "1e-2", "high": 0.2, "log": False}, "load": ["a", "c"]}
    study = small(studies={"x": {"scheduler": "slide-batching", "tune": tune}}).studies["x"]
    assert study.tune == {"gamma": Range(), "eta": Range(0.01, 0.2, False), "load": Range(choices=("a", "c"))}


def test_ranges_on_a_command_line():
    assert parse_tune(["gamma, eta=0.01..0.1", "load=a|c"]) == {
        "gamma": Range(), "eta": Range(0.01, 0.1), "load": Range(choices=("a", "c")),
    }  # fmt: skip
    for wrong in ("gamma=", "=3", "eta=1..x"):
        with pytest.raises(TuningError, match="--tune"):
            parse_tune([wrong])


def test_panels_of_evaluations_can_be_named():
    assert small(test="held_out").test.traces[0] == "azure-code"


@pytest.mark.parametrize(("changes", "problem"), [
    ({"trails": 3}, "unknown key 'trails'; a tuning has"),
    ({"trials": 2.5}, "trials is 2.5; it should be a whole number"),
    ({"trials": 0}, "trials is 0; it should be 1 or more"),
    ({"sampler": "x"}, "sampler is 'x'"),
    ({"objectives": ["tdg", "speed"]}, "unknown objective 'speed'; there are tdg"),
    ({"objectives": "tdg"}, "objectives is 'tdg'; it should be a list"),
    ({"objectives": ["tdg", "tdg"]}, "named twice"),
    ({"constraints": {"tdg": "high"}}, "constraints.tdg is 'high'; it should be a number"),
    ({"constraints": {"speed": 1}}, "unknown constraint 'speed'"),
    ({"studies": {}}, "there are no studies"),
    ({"studies": {"a": {"schedular": "edf"}}}, "studies.a.schedular: unknown key; known are scheduler"),
    ({"studies": {"a": {"tune": {"gamma": {"from": 1}}}}}, "studies.a.tune.gamma.from: unknown key; known are low"),
    ({"studies": {"a": {"tune": {"gamma": {"low": True}}}}}, "studies.a.tune.gamma.low is True; it should be a number"),
    ({"panel": {**DOCUMENT["panel"], "first_seed": 999_998}}, "seeds of panel go to 1000001; those from 1,000,000"),
    ({"validation": {"first_seed": 3}}, "they should have none in common"),
    ({"test": {"first_seed": 7}}, "it should have those from 1,000,000 on"),
    ({"panel": {"trace": ["azure-conv"], "load": [1]}}, "panel: device is missing"),
    ({"test": "nowhere"}, "test: unknown panel 'nowhere'"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(changes, problem):
    with pytest.raises(TuningError) as error:
        small(**changes)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_a_tuning_has_a_panel_and_studies(tmp_path):
    with pytest.raises(TuningError, match="studies is missing"):
        parse_tuning({"panel": {}}, "x")
    with pytest.raises(TuningError, match=r"unknown tuning 'x'; there are: default"):
        load_tuning("x")
    with pytest.raises(TuningError, match=r"^there is no file x\.yaml; it should be a YAML file with panel"):
        load_tuning("x.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(TuningError, match=r"list\.yaml should be a mapping"):
        load_tuning(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("panel: [\n")
    with pytest.raises(TuningError, match=r"broken\.yaml is no YAML"):
        load_tuning(tmp_path / "broken.yaml")


def test_roles_need_engines():
    with pytest.raises(TuningError, match="router gorouting is given, and the panel has one engine"):
        Search(small(studies={"a": {"scheduler": "edf", "router": "gorouting"}}), "a")
    with pytest.raises(TuningError, match="a scheduler of decode engines is given"):
        Search(small(studies={"a": {"scheduler": "edf", "decode_scheduler": "edf"}}), "a")

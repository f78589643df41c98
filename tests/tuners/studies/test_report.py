"""Pictures, reports and pages are made from files alone, and hold the numbers of the files."""

import dataclasses
import datetime
import json
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.tuning.page import between, main, write_page
from experiments.tuning.whole import plot_studies, read_study, read_tuning
from servegym.errors import TuningError
from servegym.tuners.studies.candidates import pareto_front
from servegym.tuners.studies.plots import plot_front, plot_loads, plot_slices
from servegym.tuners.studies.report import study_report
from tests.tuners.studies.made import made, write

pytestmark = pytest.mark.slow


@pytest.fixture
def directory(tmp_path):
    for name, gamma in (("engine", 2.0), ("router", 1.5), ("joint", 4.0)):
        write(made(name, gamma), tmp_path / name)
    config = made().config | {"studies": {"engine": {}, "router": {}, "joint": {}, "not yet": {}}}
    (tmp_path / "tuning.json").write_text(json.dumps(config))
    return tmp_path


def drawn(path) -> bool:
    return len(np.unique(np.asarray(Image.open(path).convert("L")))) > 20


@pytest.mark.parametrize("plot", [plot_loads, plot_slices])
def test_pictures_are_drawn(plot, tmp_path):
    assert drawn(plot(made(), tmp_path / "picture.png"))


def test_a_parameter_of_words_can_be_drawn(tmp_path):
    results = made()
    words = ["a", "c"]
    results.trials["scheduler.load"] = [words[i % 2] for i in range(len(results.trials))]
    row = results.parameters.iloc[1].to_dict() | {
        "parameter": "scheduler.load", "variable": "load", "default": "a", "winner": "c", "choices": "a|c",
    }  # fmt: skip
    parameters = pd.concat([results.parameters, pd.DataFrame([row])], ignore_index=True)
    results = dataclasses.replace(results, parameters=parameters)
    assert drawn(plot_slices(results, tmp_path / "picture.png"))


def test_the_front_has_what_nothing_exceeds(tmp_path):
    results = made(objectives=("tdg", "cost"))
    complete = results.trials[results.trials["state"] == "complete"]
    front = complete[pareto_front(complete[["tdg_ratio", "cost_engine_s"]], results.objectives)]
    assert 1 < len(front) < len(complete)
    for _, one in front.iterrows():
        exceeds = (complete["tdg_ratio"] >= one["tdg_ratio"]) & (complete["cost_engine_s"] <= one["cost_engine_s"])
        assert exceeds.sum() == 1  # itself
    assert drawn(plot_front(results, tmp_path / "front.png"))


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.text, self.sources = "", []

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name == "src"]


def test_the_report_is_one_file(directory):
    *pictures, path = study_report(read_study(directory / "engine"), directory / "engine")
    assert [picture.name for picture in pictures] == ["loads.png", "slices.png"]
    page = Text()
    page.feed(path.read_text())
    assert "Winner against defaults on the test: +0.0500" in page.text
    assert len(page.sources) == 2 and all(source.startswith("data:") for source in page.sources)


def test_the_page_holds_every_finished_study(directory, tmp_path):
    page, *pictures = write_page(directory, tmp_path / "docs" / "results", datetime.date(2026, 1, 2))
    text = page.read_text()
    assert page.name == "tuning-made.md" and all(drawn(picture) for picture in pictures)
    studies = read_tuning(directory)
    assert [results.name for results in studies] == ["engine", "router", "joint"]
    for results in studies:
        assert f"### {results.name}\n" in text
    change = between(studies[2], studies[0])
    assert f"H2, joint is at least as good as engine alone: holds: {change.mean:+.4f}" in text
    assert "H1, gamma and eta as tuned beat the defaults: holds" in text
    for picture in pictures:
        assert f"../images/{picture.name}" in text


def test_several_studies_in_one_picture(directory, tmp_path):
    assert drawn(plot_studies(read_tuning(directory), tmp_path / "studies.png"))


def test_what_is_missing_or_damaged_is_one_line(directory, tmp_path, capsys):
    (directory / "engine" / "outcome.json").write_text("{")
    with pytest.raises(TuningError, match=r"outcome\.json is damaged"):
        read_study(directory / "engine")
    with pytest.raises(TuningError, match="name a folder of `servegym tune`"):
        read_tuning(tmp_path / "nothing")
    assert main([str(tmp_path / "nothing"), str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1

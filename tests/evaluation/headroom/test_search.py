"""The search: a run that is possible and below the bound; its ledger; a budget in parts gives what one gives."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names
from servegym.errors import ExperimentError
from servegym.evaluation.bounds.clairvoyant import tdg_upper_bound
from servegym.evaluation.headroom.cases import Case
from servegym.evaluation.headroom.kept import KeptSearch, kept_best, run_again, search_all
from servegym.evaluation.headroom.moves import Moves
from servegym.evaluation.headroom.point import DIMENSIONS, Point
from servegym.evaluation.headroom.search import STARTS, rounds, run_of, score_of
from servegym.evaluation.running import ThreadRunner
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from tests.strategies import cluster_scenarios, scenarios

PAGE = Path(__file__).parents[3] / "docs/headroom.md"


def without_noise(scenario: Scenario) -> Scenario:
    return dataclasses.replace(scenario, disturbance=dataclasses.replace(scenario.disturbance, noise=0.0))


def some_point(data, scenario: Scenario) -> Point:
    units = data.draw(st.lists(st.floats(0, 1), min_size=DIMENSIONS, max_size=DIMENSIONS))
    point, rng = Point(np.array(units)), np.random.default_rng(data.draw(st.integers(0, 99)))
    moves = Moves(scenario.workload, rng.random(len(scenario.workload)))
    for _ in range(data.draw(st.integers(0, 6))):
        point = moves.draw(point, rng)
    return point


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data())
def test_every_point_is_a_run_that_ends_and_none_exceeds_the_bound(data):
    """Short of memory, with host memory, drift and predictors; nothing is lost, and a run cut short gains the same."""
    scenario = without_noise(data.draw(scenarios("edf")))
    point = some_point(data, scenario)
    simulation = run_of(scenario, point)
    summary = simulation.result().summary
    assert score_of(scenario, point) == pytest.approx(summary["gain"], rel=1e-12, abs=1e-12)
    if np.isinf(scenario.until_s):
        assert summary["finished"] == len(scenario.workload)
    assert summary["gain"] <= tdg_upper_bound(scenario).gain * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=40)
@given(data=st.data())
def test_nor_on_a_cluster(data):
    scenario = without_noise(data.draw(cluster_scenarios(data.draw(st.sampled_from(router_names())))))
    gain = score_of(scenario, some_point(data, scenario))
    assert gain <= tdg_upper_bound(scenario).gain * (1 + 1e-12)


@pytest.fixture(scope="module")
def case() -> Case:
    spec = ServingSpec().replaced(trace="azure-code", slo="proserve", load=1.4, requests=60, seed=5)
    return Case(spec.build(), {"what": "a small overload"})


@pytest.mark.slow
def test_it_finds_more_than_the_schedulers_and_no_more_than_the_bound(case, tmp_path):
    (found,) = search_all([case], tmp_path, 700)
    best = max(
        Simulation(ServingSpec().replaced(trace="azure-code", slo="proserve", load=1.4, requests=60, seed=5,
                                          scheduler=name).build()).run().summary["gain"]
        for name in ("slide-batching", "expected-gain", "qoserve", "sjf")
    )  # fmt: skip
    assert best < found.score <= tdg_upper_bound(case.scenario).gain
    assert run_again(case, found).summary["gain"] == pytest.approx(found.score, rel=1e-12)
    assert len(found.point.changes) > 0, "over 480 runs single requests are moved too"
    with pytest.raises(ExperimentError, match="has a score of"):
        run_again(case, found._replace(score=found.score + 1))


@pytest.mark.slow
def test_in_parts_in_threads_and_beside_others_it_finds_the_same(case, tmp_path):
    other = Case(dataclasses.replace(case.scenario, until_s=20.0), {"what": "cut short"})
    whole = search_all([case], tmp_path / "whole", 560)[0]
    for budget in (1, 30, 500, 560):
        parts = search_all([other, case], tmp_path / "parts", budget, runner=ThreadRunner(3))[1]
    assert (parts.score, parts.evaluations) == (whole.score, whole.evaluations)
    assert parts.point.to_json() == whole.point.to_json() == kept_best(case, tmp_path / "whole").point.to_json()
    assert [file.read_bytes() for file in (tmp_path / "whole").iterdir()] == [
        (tmp_path / "parts" / case.file).read_bytes()
    ]


def test_it_never_gets_worse_and_tells_how_far_it_is(case, tmp_path):
    told = []
    for budget in (1, 60):
        search_all([case], tmp_path, budget, progress=lambda *both: told.append(both))
    assert told[0] == (0, 1) and told[-1] == (60, 60)
    rows = [json.loads(line) for line in (tmp_path / case.file).read_text().splitlines()[1:]]
    assert [len(row["scores"]) for row in rows] == [len(STARTS), 12, 12, 12, 12, 12]
    best = [Point.from_json(row["best"]) for row in rows if "best" in row]
    gains = [score_of(case.scenario, point) for point in best]
    assert gains == sorted(gains) and gains[-1] == max(gain for row in rows for gain in row["scores"])


def test_what_is_no_ledger_of_it(case, tmp_path):
    assert kept_best(case, tmp_path) is None
    with pytest.raises(ExperimentError, match="budget of 0 runs; it should be 1 or more"):
        search_all([case], tmp_path, 0)
    search_all([case], tmp_path, 1)
    path = tmp_path / case.file
    with path.open("a") as file:
        file.write('{"scores": [1.0, 2.0]}\n')
    with (
        pytest.raises(ExperimentError, match="line 3: 2 scores, where the search has 12 points"),
        KeptSearch(case, tmp_path),
    ):
        pass
    path.write_text(path.read_text().replace('{"scores": [1.0, 2.0]}', '{"scores": []}'))
    with pytest.raises(ExperimentError, match="line 3: a round has no scores"):
        search_all([case], tmp_path, 1)
    search_all([case], tmp_path, 1, fresh=True)
    assert kept_best(case, tmp_path).evaluations == len(STARTS)


def test_the_lines_of_python_on_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["result"].summary["gain"] == pytest.approx(names["found"].score)
    assert len(list((tmp_path / "results/headroom").iterdir())) == 1


def test_a_package_that_is_missing_is_said_before_anything_is_run(case, monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ExperimentError, match=r"not installed \(cmaes\): pip install"):
        next(rounds(case.scenario))


def test_without_end_and_the_same_again(case):
    one, other = rounds(case.scenario), rounds(case.scenario)
    first = [next(one), next(other)]
    assert first[0] == first[1] == list(STARTS)
    drawn = [generator.send([float(k) for k in range(len(STARTS))]) for generator in (one, other)]
    assert [point.to_json() for point in drawn[0]] == [point.to_json() for point in drawn[1]]

"""The search of routers: what assigning single requests does, its moves, and that it finds more than heuristics do."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines import registry
from servegym.envs.cluster_routing import random_clusters
from servegym.evaluation.bounds.clairvoyant import tdg_upper_bound
from servegym.evaluation.headroom.assignment import AS_BASE, Assignment, searched
from servegym.evaluation.headroom.cases import Case
from servegym.evaluation.headroom.kept import kept_best, run_again, search_all
from servegym.evaluation.headroom.reassigning import Reassignments
from servegym.evaluation.headroom.search import BASES, run_of, score_of
from servegym.evaluation.running import ThreadRunner
from servegym.latency_models.model import LatencyModel
from servegym.scenarios.presets import spelled_out
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation

SESSIONS = {"preset": "session-fleet", "split": "validation", "requests": 120, "rate_per_s": 20.0}
MIXED = {"preset": "mixed-fleet", "split": "validation", "requests": 80, "load": 3.0}
ENGINES = 4
DEVICE = LatencyModel.from_values("linear", {"a_p": 0, "b_p": 0, "c_p": 0.01, "a_d": 0, "b_d": 0.01, "t_c": 0.01})


def scenario_of(words: dict, seed: int = 0) -> Scenario:
    return random_clusters(ENGINES).with_overrides(spelled_out(words))(np.random.default_rng(seed))


def engines_of(scenario: Scenario, point: Assignment) -> np.ndarray:
    return run_of(scenario, point).arrays.requests["engine"].copy()


@given(st.sampled_from(BASES), st.data())
def test_a_point_survives_json_and_its_settings_are_in_their_ranges(base, data):
    units = data.draw(st.lists(st.floats(0, 1), min_size=len(searched(base)), max_size=len(searched(base))))
    point = Assignment(base, np.array(units), {3: 2, 7: 0})
    again = Assignment.from_json(point.to_json())
    assert again.family.tolist() == units and (again.base, again.changes) == (base, point.changes)
    for parameter in searched(base):
        assert parameter.low <= point.settings[parameter.name] <= parameter.high


@pytest.mark.parametrize("base", [pytest.param(base, marks=pytest.mark.slow) for base in BASES[1:]] + [BASES[0]])
def test_without_changes_it_is_the_heuristic(base):
    scenario = scenario_of(SESSIONS)
    alone = Simulation(dataclasses.replace(scenario, router=registry.router(base)))
    alone.run()
    np.testing.assert_array_equal(engines_of(scenario, Assignment.of(base)), alone.arrays.requests["engine"])


@pytest.mark.parametrize("words", [SESSIONS, MIXED])
def test_every_request_goes_where_it_is_assigned(words):
    scenario = scenario_of(words)
    wanted = np.random.default_rng(1).integers(AS_BASE, ENGINES, len(scenario.workload))
    point = Assignment.of("min-load").changed(dict(enumerate(wanted.tolist())))
    assert len(point.changes) == (wanted != AS_BASE).sum()
    engines = engines_of(scenario, point)
    np.testing.assert_array_equal(engines[wanted != AS_BASE], wanted[wanted != AS_BASE])


@pytest.mark.nojit
def test_an_engine_that_there_is_not_changes_nothing():
    columns = {"arrival_s": np.arange(6) * 0.1, "prompt_tokens": 99, "output_tokens": 2, "ttft_slo_s": 5.0}
    workload = Workload.from_columns(columns | {"tpot_slo_s": 0.2})
    pool = Deployment(DEVICE, DEVICE, 1000, block_tokens=1, engines=2)
    scenario = Scenario(workload, Cluster((pool,)), registry.scheduler("edf"), Gain(first_weight=1.0))
    base = Assignment.of("min-load")
    for engine in (0, 1):
        assert engines_of(scenario, base.changed(dict.fromkeys(range(6), engine))).tolist() == [engine] * 6
    there_is_not = base.changed(dict.fromkeys(range(6), 2))
    np.testing.assert_array_equal(engines_of(scenario, there_is_not), engines_of(scenario, base))


def test_moves_are_of_few_requests_to_engines_there_are_and_begin_at_those_that_missed():
    scenario = scenario_of(SESSIONS)
    point, rng = Assignment.of("min-load"), np.random.default_rng(0)
    moves = Reassignments.after(run_of(scenario, point))
    drawn = [moves.draw(point, rng).changes for _ in range(400)]
    assert {engine for changes in drawn for engine in changes.values()} == set(range(ENGINES))
    single = [next(iter(changes)) for changes in drawn if len(changes) == 1]
    assert np.mean(moves.missed[single]) > 1.5 * moves.missed.mean() > 0
    longest = sorted(max(drawn, key=len))
    assert len(longest) > 3 and len(set(moves.session[longest])) == 1, "the rest of a session"
    moved = point.changed(dict.fromkeys(range(60), 0))
    assert min(len(moves.draw(moved, rng).changes) for _ in range(100)) < 60, "some are as the base has them again"


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_no_assignment_exceeds_the_bound(data):
    scenario = scenario_of(MIXED, data.draw(st.integers(0, 3)))
    wanted = data.draw(st.lists(st.integers(AS_BASE, ENGINES - 1), min_size=80, max_size=80))
    run = run_of(scenario, Assignment.of(data.draw(st.sampled_from(BASES))).changed(dict(enumerate(wanted))))
    assert run.arrays.status[0].gain <= tdg_upper_bound(scenario).gain * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("words", [SESSIONS, MIXED])
def test_it_finds_more_than_every_heuristic(words, tmp_path):
    case = Case(scenario_of(words), {"what": "a small fleet"}, "router")
    (found,) = search_all([case], tmp_path, 100, runner=ThreadRunner(2))
    heuristics = [score_of(case.scenario, Assignment.of(base)) for base in BASES]
    assert found.score > max(heuristics) and found.evaluations >= 100
    summary = run_again(case, found).summary
    assert summary["tdg_ratio"] + summary["slo_attainment"] == pytest.approx(found.score, rel=1e-12)
    assert kept_best(case, tmp_path).point.to_json() == found.point.to_json()


@pytest.mark.slow
def test_single_requests_are_moved_too_and_in_parts_it_finds_the_same(tmp_path):
    case = Case(scenario_of(MIXED), {"what": "a small fleet"}, "router")
    (whole,) = search_all([case], tmp_path / "whole", 900)
    for budget in (1, 500, 900):
        (parts,) = search_all([case], tmp_path / "parts", budget)
    assert len(whole.point.changes) > 0
    assert (parts.score, parts.evaluations, parts.point.to_json()) == (
        whole.score, whole.evaluations, whole.point.to_json(),
    )  # fmt: skip

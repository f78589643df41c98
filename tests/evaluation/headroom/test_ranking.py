"""The family of rankings: what it counts, and what moving single requests does."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.expected_gain import tokens_in_time
from servegym.evaluation.headroom.moves import Moves
from servegym.evaluation.headroom.point import NO_CHANGE, SEARCHED, Change, Point
from servegym.evaluation.headroom.ranking import NEVER_S
from servegym.evaluation.headroom.search import run_of, score_of
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain

pytestmark = pytest.mark.nojit
DEVICE = LatencyModel.from_values("linear", {"a_p": 0, "b_p": 0, "c_p": 0.01, "a_d": 0, "b_d": 0.01, "t_c": 0.01})


def scene(**columns) -> Scenario:
    """Two prompts at once, each taking a second; only the first of them that runs is in time."""
    given = {"arrival_s": [0.0, 0.0], "prompt_tokens": 99, "output_tokens": 1, "ttft_slo_s": 1.5, "tpot_slo_s": 0.2}
    workload = Workload.from_columns(given | columns)
    return Scenario(
        workload, Deployment(DEVICE, DEVICE, 1000, block_tokens=1), scheduler("edf"), Gain(first_weight=1.0)
    )


def first_tokens_s(scenario: Scenario, point: Point) -> list[float]:
    return run_of(scenario, point).arrays.outcomes["first_token_s"].tolist()


@given(st.integers(-40, 40), st.integers(-8, 8), st.integers(1, 30))
def test_tokens_in_time_are_those_that_one_counts(slack, gained, tokens):
    counted = sum(slack / 64 + k * gained / 64 > 0 for k in range(tokens))
    assert tokens_in_time(slack / 64, gained / 64, float(tokens)) == counted


@given(st.lists(st.floats(0, 1), min_size=len(SEARCHED), max_size=len(SEARCHED)))
def test_a_point_survives_json_and_its_settings_are_in_their_ranges(units):
    point = Point(np.array(units), {3: Change(0.5, 2.0), 7: Change(0.0, NEVER_S)})
    again = Point.from_json(point.to_json())
    assert again.family.tolist() == units and again.changes == point.changes
    for parameter in SEARCHED:
        assert parameter.low <= point.settings[parameter.name] <= parameter.high


def test_defaults_are_the_rankings_own():
    assert Point.of().settings == pytest.approx({parameter.name: parameter.default for parameter in SEARCHED})
    assert Point.of(gamma=5.0).settings["gamma"] == pytest.approx(5.0)


@pytest.mark.slow
def test_a_request_that_goes_earlier_runs_first():
    greedy = Point.of(gamma=1000.0)
    first, second = first_tokens_s(scene(), greedy)
    assert first < second  # ties go to the earlier arrival
    first, second = first_tokens_s(scene(), greedy.changed({1: Change(earlier=1.0)}))
    assert second < first


def test_a_dropped_request_runs_when_there_is_nothing_else():
    for late in (NEVER_S, 0.5):
        point = Point.of(gamma=1000.0).changed({0: Change(not_before_s=late)})
        first, second = first_tokens_s(scene(), point)
        assert second < first < np.inf
    alone = scene(arrival_s=[0.0, 9.0])
    assert first_tokens_s(alone, Point.of().changed({0: Change(not_before_s=NEVER_S)}))[0] < 9.0


def test_true_lengths_say_which_of_two_is_worth_more():
    """Only one prompt is done in time; that of the longer answer, though it is the second."""
    scenario = scene(output_tokens=[2, 60], ttft_slo_s=1.603)
    first, second = first_tokens_s(scenario, Point.of(gamma=1000.0, token_s=1e-7))
    assert second < first
    assert score_of(scenario, Point.of(gamma=1000.0, token_s=1e-7)) >= 60


def test_a_change_that_is_none_takes_the_other_back():
    point = Point.of().changed({4: Change(1.0, 2.0)})
    assert point.changed({4: NO_CHANGE}).changes == {}


def test_moves_change_a_few_requests_and_aim_at_what_is_lost():
    scenario = scene(arrival_s=np.zeros(40), ttft_slo_s=5.003)
    simulation = run_of(scenario, Point.of())
    moves, rng = Moves.after(simulation), np.random.default_rng(0)
    np.testing.assert_allclose(moves.lost, 1.0 - simulation.arrays.outcomes["gain"])
    changed = [set(moves.draw(Point.of(), rng).changes) for _ in range(400)]
    assert all(len(rows) <= 6 for rows in changed) and max(map(len, changed)) > 1
    aimed = np.mean([moves.lost[row] > 0 for rows in changed if len(rows) == 1 for row in rows])
    assert 0 < moves.lost.sum() < 40 and aimed > moves.lost.mean()


def test_a_run_is_cut_where_nothing_can_be_in_time_any_more():
    scenario = scene(arrival_s=np.zeros(8))
    assert score_of(scenario, Point.of()) == float(run_of(scenario, Point.of()).arrays.status[0].gain)
    cut = dataclasses.replace(scenario, until_s=0.5)
    assert score_of(cut, Point.of()) == 0

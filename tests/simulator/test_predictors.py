"""Predictors by hand: which is mistaken and by how much, and when a prediction is there."""

import dataclasses
import re

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import PredictorError
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictions, Predictor
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS
from tests.simulator.scenes import requests


def many(n: int = 4000) -> Workload:
    rng = np.random.default_rng(7)
    return requests(prompt_tokens=1, output_tokens=rng.integers(1, 501, n), urgency=rng.integers(0, 5, n))


def ready(*arrival_s: float, **settings) -> list[float]:
    return Predictor(**settings).ready_s(np.array(arrival_s)).tolist()


# What is predicted


def test_without_errors_the_truth_is_predicted():
    workload = many()
    predictions = Predictor().predict(workload)
    np.testing.assert_array_equal(predictions.urgency, workload.table["urgency"])
    np.testing.assert_array_equal(predictions.predicted_output_tokens, workload.table["output_tokens"])
    np.testing.assert_array_equal(predictions.ready_s, workload.table["arrival_s"])


def test_the_middle_of_a_bucket_is_predicted():
    workload = requests(prompt_tokens=1, output_tokens=[1, 100, 101, 250, 500, 501, 9000])
    predicted = Predictor(length_buckets=5).predict(workload).predicted_output_tokens
    assert predicted.tolist() == [50, 50, 150, 250, 450, 450, 450]
    assert Predictor().predict(workload).predicted_output_tokens.tolist() == [1, 100, 101, 250, 500, 501, 9000]
    one = Predictor(length_buckets=1, length_error=1.0).predict(workload)  # there is no other
    assert one.predicted_output_tokens.tolist() == [250] * 7


@pytest.mark.parametrize("error", [0.1, 0.25, 0.4, 1.0])
def test_the_share_that_is_wrong(error):
    workload = many()
    exact, buckets = Predictor(error, error), Predictor(error, error, length_buckets=5)
    for predictor, truth in ((exact, Predictor()), (buckets, Predictor(length_buckets=5))):
        told, true = predictor.predict(workload), truth.predict(workload)
        assert (told.urgency != true.urgency).sum() == error * 4000
        assert (told.predicted_output_tokens != true.predicted_output_tokens).sum() == error * 4000


def test_the_mean_distance_where_the_scale_does_not_end():
    # 100 levels, all at 50: 0.125 of them is 12.5; lengths of 2000 in a scale of 4000: 500.
    workload = requests(prompt_tokens=1, output_tokens=np.full(4000, 2000), urgency=50)
    told = Predictor(0.125, 0.125, urgency_levels=100, longest_output_tokens=4000).predict(workload)
    off = told.urgency[told.urgency != 50] - 50
    assert set(abs(off)) == {12, 13} and abs(off).mean() == pytest.approx(12.5, abs=0.1)
    assert abs((off > 0).mean() - 0.5) < 0.1
    assert set(told.predicted_output_tokens) == {1500, 2000, 2500}


def test_mistakes_end_with_the_scale():
    # An error of 1 with 3 levels: 3 levels off, clipped; 0 can only be taken for 2, 2 only for 0, 1 for either.
    workload = requests(prompt_tokens=1, output_tokens=1, urgency=np.arange(600) % 3)
    told = Predictor(urgency_error=1.0, urgency_levels=3).predict(workload).urgency
    assert set(told[0::3]) == {2} and set(told[2::3]) == {0} and set(told[1::3]) == {0, 2}
    lengths = requests(prompt_tokens=1, output_tokens=np.tile([1, 500, 250], 200))
    told = Predictor(length_error=1.0).predict(lengths).predicted_output_tokens
    assert set(told[0::3]) == {500} and set(told[1::3]) == {1} and set(told[2::3]) == {1, 500}


def test_a_mistake_is_of_one_level_at_least():
    told = Predictor(urgency_error=0.01).predict(many())
    assert set(abs(told.urgency - many().table["urgency"])) == {0, 1}


def test_a_larger_error_is_wrong_about_the_same_requests_and_more():
    workload = many()
    wrong = [Predictor(urgency_error=error).predict(workload).urgency != workload.table["urgency"]
             for error in (0.1, 0.5, 0.9)]  # fmt: skip
    assert (wrong[0] <= wrong[1]).all() and (wrong[1] <= wrong[2]).all()


def test_predictions_depend_on_the_seed_alone():
    predictors = [Predictor(0.5, 0.5, seed=seed) for seed in (1, 1, 2)]
    np.random.seed(0)  # noqa: NPY002  (the global generator has no part in it)
    first, again, other = (predictor.predict(many()) for predictor in predictors)
    for one, same in zip(first, again, strict=True):
        assert one.tobytes() == same.tobytes()
    assert (first.urgency != other.urgency).any()
    # Errors of one kind do not move those of the other.
    np.testing.assert_array_equal(Predictor(0.5, seed=1).predict(many()).urgency, first.urgency)


# When


def test_immediate_processing_takes_what_waits():
    assert ready(0, 0, 0.5, 3, latency_s=1, batch_size=1) == [1, 2, 3, 4]
    assert ready(0, 0, 0.5, 3, latency_s=1, batch_size=2) == [1, 1, 2, 4]
    assert ready(0, 0.5, 0.5, 1, 1.25, latency_s=1, batch_size=64) == [1, 2, 2, 2, 3]  # at 1 s: what came at 1 s
    assert ready(0, 0, 0, latency_s=0, batch_size=2) == [0, 0, 0]


def test_full_batches_wait_for_the_last_of_them():
    full = {"processing": "full-batch", "latency_s": 1}
    assert ready(0, 2, 2.5, 2.75, **full, batch_size=2) == [3, 3, 4, 4]
    assert ready(0, 2, 9, 9.5, **full, batch_size=2) == [3, 3, 10.5, 10.5]


def test_the_last_partial_batch_goes_when_none_is_to_come():
    full = {"processing": "full-batch", "latency_s": 1}
    assert ready(0, 2, 9, **full, batch_size=2) == [3, 3, 10]
    assert ready(0, 2, 9, **full, batch_size=64) == [10, 10, 10]
    assert ready(4, **full, batch_size=64) == [5]


def test_time_for_each_request_of_a_call():
    assert ready(0, 0, 0, latency_s=1, latency_per_request_s=0.25, batch_size=2) == [1.5, 1.5, 2.75]
    full = {"processing": "full-batch", "latency_per_request_s": 0.5}
    assert ready(0, 1, 5, **full, batch_size=2) == [2, 2, 5.5]


@pytest.mark.parametrize("processing", ["immediate", "full-batch"])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_ready_is_never_before_the_arrival_or_an_earlier_request(processing, batch_size):
    arrival_s = np.cumsum(np.random.default_rng(batch_size).choice([0.0, 0.0, 0.1, 2.0], 500))
    predictor = Predictor(processing=processing, batch_size=batch_size, latency_s=0.3, latency_per_request_s=0.01)
    ready_s = predictor.ready_s(arrival_s)
    assert (ready_s >= arrival_s + 0.3).all() and (np.diff(ready_s) >= 0).all()


# What a policy sees of it


@dataclasses.dataclass(frozen=True)
class Told(Predictor):
    """Says what it is told to say."""

    urgency: tuple[int, ...] = ()
    output_tokens: tuple[float, ...] = ()
    at_s: tuple[float, ...] = ()

    def predict(self, workload: Workload) -> Predictions:
        return Predictions(np.array(self.urgency, "i4"), np.array(self.output_tokens), np.array(self.at_s))


def run(policy: str, told: Told, output_tokens: list[int]) -> Simulation:
    workload = requests(prompt_tokens=1, output_tokens=output_tokens, urgency=0)
    deployment = Deployment(SECONDS, SECONDS, total_blocks=100, block_tokens=1)
    simulation = Simulation(Scenario(workload, deployment, scheduler(policy), predictor=told))
    simulation.run()
    return simulation


def test_a_policy_sees_predictions_and_not_the_truth():
    # The second is longer and is told to be shorter: it goes first. One slot.
    told = Told(urgency=(1, 1), output_tokens=(9.0, 2.0), at_s=(0.0, 0.0))
    simulation = run("semantic:slots=1", told, [1, 3])
    np.testing.assert_array_equal(simulation.arrays.requests["predicted_output_tokens"], [9, 2])
    np.testing.assert_array_equal(simulation.arrays.requests["urgency"], [1, 1])
    assert simulation.arrays.outcomes["finish_s"].tolist() == [8, 6]
    # The same the other way round by urgency.
    told = Told(urgency=(0, 1), output_tokens=(9.0, 2.0), at_s=(0.0, 0.0))
    assert run("semantic:slots=1", told, [1, 3]).arrays.outcomes["finish_s"].tolist() == [2, 8]


def test_a_request_joins_when_it_is_ready_and_counts_from_its_arrival():
    told = Told(urgency=(0, 0), output_tokens=(1.0, 1.0), at_s=(5.0, 20.0))
    simulation = run("semantic", told, [1, 1])
    assert simulation.arrays.outcomes["finish_s"].tolist() == [7, 22]
    assert simulation.arrays.requests["first_deadline_s"].tolist() == [1000, 1000]


# Errors


@pytest.mark.parametrize(("wrong", "told"), [
    ({"urgency_error": 1.5}, "urgency_error is 1.5; it should be 0 to 1"),
    ({"length_error": float("nan")}, "length_error is nan; it should be 0 to 1"),
    ({"urgency_levels": 0}, "urgency_levels is 0; it should be a whole number of 1 or more"),
    ({"urgency_levels": 1, "urgency_error": 0.5}, "urgency_levels is 1; it should be 2 or more"),
    ({"length_buckets": 501}, "length_buckets is 501; it should be None, or a whole number from 1 to"),
    ({"batch_size": 2.5}, "batch_size is 2.5; it should be a whole number of 1 or more"),
    ({"latency_s": -1.0}, "latency_s is -1.0; it should be a time of 0 s or more"),
    ({"latency_per_request_s": float("inf")}, "latency_per_request_s is inf; it should be a time"),
    ({"processing": "later"}, "processing is 'later'; it should be immediate or full-batch"),
    ({"seed": -1}, "seed is -1; it should be a whole number of 0 or more"),
])  # fmt: skip
def test_wrong_values_are_told(wrong, told):
    with pytest.raises(PredictorError, match=re.escape(told)):
        Predictor(**wrong)


def test_an_urgency_that_is_no_level_is_told():
    workload = requests(prompt_tokens=1, output_tokens=1, urgency=[0, 5])
    with pytest.raises(PredictorError, match="request 1: urgency is 5; a predictor of 5 levels takes 0 to 4"):
        Predictor().predict(workload)

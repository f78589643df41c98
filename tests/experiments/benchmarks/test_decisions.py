"""Decisions that are timed: that the queue is as it is said to be, and that networks really decide, each time anew."""

import numpy as np
import pytest

from experiments.benchmarks import decisions
from experiments.benchmarks.scenarios import Sizes
from servegym.baselines.learned.memory import KEPT
from servegym.baselines.registry import scheduler, scheduler_names

RUNNING, WAITING = 12, 300  # more than a queue has room for at first


@pytest.fixture(scope="module")
def timed() -> decisions.Timed:
    return decisions.Timed(decisions.learned(16), RUNNING, WAITING)


def test_requests_run_and_wait_and_some_of_those_that_wait_are_late(timed):
    requests, queue = timed.simulation.arrays.requests, timed.simulation.arrays.queues[0]
    engine, now_s = timed.simulation.arrays.engines[0], timed.simulation.arrays.status[0].now_s
    assert queue[: engine["queue_length"]].tolist() == list(range(RUNNING + WAITING))
    left = requests["prompt_tokens"] + requests["num_output_tokens"] - requests["computed_tokens"]
    decoding = (requests["num_output_tokens"] > 0) & (left == 1)
    assert decoding.sum() == RUNNING and (requests["blocks"] > 0).sum() == RUNNING
    assert engine["free_blocks"] + requests["blocks"].sum() == engine["total_blocks"] and engine["free_blocks"] > 0
    late = requests["first_deadline_s"][~decoding] < now_s
    assert 0.1 < late.mean() < 0.9


def test_a_network_is_asked_each_time_and_says_something(timed):
    policy = timed.simulation.scenario.scheduler
    numbers = timed.simulation.arrays.parameters[0, len(policy.parameters) :]
    at = int(numbers[0])
    timed.decision_s(3)
    last_s, action = numbers[at - KEPT], numbers[at : at + 20].copy()
    assert last_s - timed.simulation.arrays.status[0].now_s == pytest.approx(2 * decisions.LATER_S, rel=0.1)
    assert (action != 0).all() and np.ptp(action[4:]) > 0


@pytest.mark.parametrize("name", [name for name in scheduler_names() if scheduler(name).estimates])
def test_what_is_said_to_estimate_leaves_the_times_of_the_estimator(name):
    timed = decisions.Timed(scheduler(name), RUNNING, WAITING)
    timed.decision_s(1)
    arrays, model = timed.simulation.arrays, timed.simulation.scenario.deployment.estimator
    queue = arrays.queues[0][: RUNNING + WAITING]
    left = arrays.ranks["exec_s"][: len(queue)].copy()
    assert (left > 0.0).all()
    model.exec_s(arrays.requests, queue, model.coefficients, arrays.ranks)
    assert left.tobytes() == arrays.ranks["exec_s"][: len(queue)].tobytes()


def test_a_ratio_for_each_and_slide_batching_is_one_of_itself(monkeypatch):
    monkeypatch.setattr(decisions, "cases", lambda: [("itself", scheduler(decisions.REFERENCE))])
    [figure] = decisions.measure(Sizes(repetitions=9, decisions=200))
    assert figure.name == "itself_decision_ratio" and figure.value == pytest.approx(1.0, rel=0.3)
    assert figure.low <= figure.value <= figure.high

"""The search for a highest rate, and when a run is given up."""

import math

import numpy as np
import pytest

from servegym.evaluation import bisection
from servegym.evaluation.bisection import Found, failed_counts, highest_rate
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import missed, violated
from tests.simulator.scenes import requests, scene

BOUNDS = {"low": 0.1, "high": 5.0, "precision": 1.02, "step": 1.5}


@pytest.mark.parametrize("limit", [0.11, 0.5, 0.99, 1.0, 1.7, 4.9])
def test_it_closes_in_on_the_limit(limit):
    asked = []
    found = highest_rate(lambda rate: asked.append(rate) or rate <= limit, 1.0, **BOUNDS)
    assert found.served <= limit < found.refused <= 1.02 * found.served
    assert found.runs == len(asked) == len(set(asked)) < 20


def test_never_and_always():
    rates = []
    assert highest_rate(lambda rate: rates.append(rate) or False, 1.0, **BOUNDS) == Found(None, 0.1, len(rates))
    assert min(rates) == 0.1
    rates.clear()
    assert highest_rate(lambda rate: rates.append(rate) or True, 1.0, **BOUNDS) == Found(5.0, None, len(rates))
    assert max(rates) == 5.0


LATE = requests(prompt_tokens=[3] * 6, arrival_s=np.arange(6) * 10.0, ttft_slo_s=[4.5, 1, 4.5, 1, 4.5, 4.5])
ALL = np.ones((1, 6), bool)


@pytest.mark.parametrize("failed", [violated, missed])
def test_how_many_have_failed(failed):
    assert failed_counts(Simulation(scene(LATE)), ALL, np.array([2]), failed).tolist() == [2]
    assert failed_counts(Simulation(scene(LATE)), ALL, np.array([1]), failed) is None
    halves = np.array([[True] * 3 + [False] * 3, [False] * 3 + [True] * 3])
    assert failed_counts(Simulation(scene(LATE)), halves, np.array([1, 1]), failed).tolist() == [1, 1]
    assert failed_counts(Simulation(scene(LATE)), halves, np.array([1, 0]), failed) is None


def test_a_hopeless_run_is_given_up():
    run = Simulation(scene(LATE.replace(ttft_slo_s=1.0)))
    assert failed_counts(run, ALL, np.array([0])) is None
    assert run.arrays.status[0].now_s < 20 and run.arrays.status[0].next_arrival < 6
    assert bisection.LOOKS > 1


def test_what_comes_after_the_last_arrival_counts():
    # The last answer goes on for 100 s after it: it fails then, not while requests arrive.
    slow = LATE.replace(output_tokens=[1, 1, 1, 1, 1, 50], ttft_slo_s=9.0, tpot_slo_s=1.0)
    assert failed_counts(Simulation(scene(slow)), ALL, np.array([0]), missed) is None
    assert failed_counts(Simulation(scene(slow)), ALL, np.array([math.inf]), missed).tolist() == [1]

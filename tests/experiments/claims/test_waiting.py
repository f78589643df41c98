"""How claims about waiting times are measured, on runs small enough to follow."""

import numpy as np
import pytest

from experiments.claims.harness.cells import Cell
from experiments.claims.harness.settings import FULL, QUICK, Setting
from experiments.claims.harness.waiting import (
    PublicCodePredictor,
    cell_of_waves,
    requests_of,
    serve_waiting,
    settings_of,
    simulation,
)
from servegym.simulator.inputs.predictors import Predictor
from tests.simulator.scenes import requests

SETTING = Setting("semantic", "a5000-qwen1.5-7b")
CELL = Cell(*SETTING, "semantic", 1.0, seed=3, requests=60, arrivals="waves:n=5,gap_s=0.1")


def test_settings_in_words():
    told = settings_of("length_buckets=5,latency_s=0.01,processing=full-batch")
    assert told == {"length_buckets": 5, "latency_s": 0.01, "processing": "full-batch"} and settings_of("") == {}
    assert isinstance(told["length_buckets"], int)


def test_a_run_has_a_hundred_waves_and_fewer_in_a_smaller_size():
    assert requests_of(5, FULL) == 250 and requests_of(100, FULL, waves=40) == 2000
    assert requests_of(5, QUICK) == 75
    cell = cell_of_waves(SETTING, FULL, "hpjf", 1, 20, 0.5, predictor="urgency_error=0.5")
    assert (cell.requests, cell.arrivals, cell.predictor) == (1000, "waves:n=20,gap_s=0.5", "urgency_error=0.5")
    twice = cell_of_waves(SETTING, FULL, "hpjf", 1, 40, 0.5)
    assert twice.load == pytest.approx(2 * cell.load)


def test_waiting_is_counted_by_true_urgency_and_over_all_repeats():
    measured = serve_waiting(CELL._replace(predictor="urgency_error=1.0"), requests_at_least=120)
    runs = [simulation(CELL._replace(predictor="urgency_error=1.0"), seed) for seed in (3000, 3001)]
    tables = [run.run().requests for run in runs]
    level = np.concatenate([run.scenario.workload.table["urgency"] for run in runs])
    waited = np.concatenate([table["ttlt_s"] for table in tables])
    tokens = np.concatenate([table["output_tokens"] for table in tables])
    assert measured["waiting_s"] == pytest.approx(waited.sum() / tokens.sum())
    assert measured["mean_waiting_s_2"] == pytest.approx((waited / tokens)[level == 2].mean())
    assert measured["waiting_s_0"] == pytest.approx(waited[level == 0].sum() / tokens[level == 0].sum())
    assert (runs[0].arrays.requests["urgency"] != runs[0].scenario.workload.table["urgency"]).all()


def test_a_level_that_none_has_is_none():
    measured = serve_waiting(CELL._replace(requests=1), requests_at_least=1)
    assert [measured[f"waiting_s_{level}"] is None for level in range(5)].count(False) == 1


def test_predictor_and_host_memory_of_a_cell():
    run = simulation(
        CELL._replace(predictor="latency_s=2.5", host="blocks=9,load_s_per_token=0.5,save_s_per_token=0.25"), 1
    )
    assert (run.arrays.outcomes["ready_s"] >= run.scenario.workload.table["arrival_s"] + 2.5).all()
    assert run.scenario.deployment.host is not None and run.arrays.engines[0].free_host_blocks == 9
    assert run.scenario.predictor is not None and run.scenario.predictor.seed == 1


def test_mistakes_of_the_public_code():
    workload = requests(prompt_tokens=1, output_tokens=1, urgency=np.arange(1000) % 5)
    told = PublicCodePredictor(urgency_error=0.9).predict(workload).urgency
    wrong = told != workload.table["urgency"]
    assert wrong.sum() == 900
    # 4 levels off, clipped to 1 to 5: 0 is taken for 1 or 4, 1 for 5, others for 1 or 5.
    taken = {
        level: set(told[0::5][wrong[0::5]] if level == 0 else told[level::5][wrong[level::5]]) for level in range(5)
    }
    assert taken == {0: {1, 4}, 1: {5}, 2: {1, 5}, 3: {1, 5}, 4: {1, 5}}
    none = PublicCodePredictor(urgency_error=0.1).predict(workload).urgency  # half a level is none
    assert set(none[0::5]) == {0, 1} and (none[none != workload.table["urgency"]] == 1).all()
    assert (Predictor(urgency_error=0.1).predict(workload).urgency != workload.table["urgency"]).sum() == 100

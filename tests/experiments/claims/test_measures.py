"""What is measured of a run agrees with the run's own tables."""

import dataclasses

import numpy as np
import pytest

from experiments.claims.harness.cells import Cell, scenario, simulation
from experiments.claims.harness.measures import by_priority, serve, serve_by_first_token
from experiments.claims.harness.settings import idle_prefill_s, profile, slo_recipe, workload
from experiments.claims.harness.timelines import Urgency, serve_sampled
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.experiments.claims.synthetic import DEVICE

CELL = Cell("azure-conv", DEVICE, "slide-batching", 2.0, 3, 120)


def test_by_priority_adds_up_to_the_whole():
    result = simulation(CELL).run()
    measured, requests = by_priority(result), result.requests
    ideal = [requests["ideal_gain"][requests["priority"] == priority].sum() for priority in (0, 1)]
    parts = measured["tdg_ratio_high_priority"] * ideal[0] + measured["tdg_ratio_low_priority"] * ideal[1]
    assert parts / sum(ideal) == pytest.approx(result.summary["tdg_ratio"])


def test_decodes_in_time_by_first_token_add_up_to_all_tokens_in_time():
    measured, requests = serve_by_first_token(CELL), simulation(CELL).run().requests
    early = requests["ttft_s"] < requests["ttft_slo_s"]
    assert 0 < early.sum() < len(early)
    decodes = requests["output_tokens"] - 1
    in_time = sum(
        measured[f"decodes_in_time_after_{name}_first"] * decodes[which].sum()
        for name, which in {"early": early, "late": ~early}.items()
    )
    assert in_time + early.sum() == pytest.approx(requests["on_time_tokens"].sum())
    assert serve_by_first_token(CELL._replace(load=0.05))["decodes_in_time_after_late_first"] is None


def test_requests_whose_tokens_are_all_in_time_attain_by_deadlines():
    requests = simulation(CELL).run().requests
    all_in_time = (requests["on_time_tokens"] == requests["output_tokens"]).mean()
    assert serve(CELL)["deadline_attainment"] >= all_in_time > 0


def test_high_weight_is_of_high_priority_only():
    table = scenario(CELL._replace(high_weight=8.0)).workload.table
    assert set(table["weight"][table["priority"] == 0]) == {8.0}
    assert set(table["weight"][table["priority"] == 1]) == {1.0}


def test_exact_estimator_is_never_wrong():
    def wrong_by(cell):
        timeline = simulation(cell, record_timeline=True).run().timeline
        estimated, real = (timeline["value"][timeline["kind"] == f"batch_{end}"].to_numpy() for end in ("start", "end"))
        return np.abs(estimated - real).max()

    assert wrong_by(CELL._replace(exact_estimator=True)) < 1e-9 < wrong_by(CELL)


def test_idle_prefill_is_what_an_idle_engine_takes():
    for prompt_tokens in (1, 512, 513, 1300):
        one = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [prompt_tokens], "output_tokens": [1]})
        alone = dataclasses.replace(scenario(CELL._replace(scheduler="edf:max_num_batched_tokens=512")), workload=one)
        ttft_s = Simulation(alone).run().summary["ttft_s"]["p50"]
        assert idle_prefill_s(DEVICE, one.table, 512) == pytest.approx([ttft_s])


def test_slos_give_an_idle_engine_slack():
    for device in ("a100-llama3-8b", "ascend910b-qwen3-8b-eager"):
        one = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [512], "output_tokens": [2]})
        idle = Simulation(dataclasses.replace(scenario(CELL), workload=one, deployment=profile(device).deployment()))
        assert workload(CELL._replace(device=device).setting, 1.0, 0, 5).table["tpot_slo_s"][0] >= 0.05
        assert float(slo_recipe(device).partition("=")[2]) == pytest.approx(idle.run().summary["tpot_s"]["p50"])


def test_sampling_changes_nothing_and_gain_only_grows():
    sampled, plain = serve_sampled(CELL), simulation(CELL).run().summary
    assert sampled["tdg_ratio"] == plain["tdg_ratio"]
    assert (np.diff(sampled["gain"]) >= 0).all()
    assert len({len(sampled[name]) for name in ("time_s", "urgent", "normal", "timed_out", "urgent_in_all")}) == 1


def test_urgency_is_that_of_the_scheduler_at_its_own_decisions():
    run = simulation(CELL)
    urgency = Urgency(run)
    seen = set()
    while run.step():
        length = int(run.arrays.engines[0].queue_length)
        counts = urgency.counts(float(run.arrays.status[0].now_s))
        assert counts.urgent + counts.normal + counts.timed_out == length
        assert counts.urgent <= counts.urgent_in_all <= counts.urgent + counts.timed_out
        seen.add(counts.urgent_in_all > 0)
    assert seen == {False, True}

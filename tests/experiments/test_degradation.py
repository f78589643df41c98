"""The study of degradation: that only what is said is wrong, and what is made of the numbers."""

import numpy as np
import pytest

from experiments.degradation import __main__ as study
from experiments.degradation.conditions import (
    CONDITIONS,
    ESTIMATOR,
    GAIN,
    LENGTHS,
    NOTHING,
    POLICIES,
    PREDICTOR,
    TUNED,
    Cell,
    Condition,
    Run,
    applies,
    runs_of,
    scenario_of,
    served,
)  # fmt: skip
from experiments.degradation.page import Scores, hypotheses
from servegym.simulator.runs.simulation import Simulation

pytestmark = pytest.mark.slow

CELL, SEED, REQUESTS = Cell("azure-code", "a100-llama3-8b", 1.4), 3_100_900, 60


def scenario(policy, condition):
    return scenario_of(Run(policy, condition, CELL, SEED), REQUESTS)


@pytest.mark.parametrize("policy", POLICIES)
def test_to_end_with_the_last_deadline_changes_no_figure(policy):
    spec, workload = served(CELL, SEED, REQUESTS)
    whole = Simulation(spec.with_values({"scheduler": POLICIES[policy]}).build(SEED, workload=workload)).run().summary
    ended = Simulation(scenario(policy, NOTHING)).run().summary
    assert [ended[name] for name in ("tdg_ratio", "slo_attainment")] == [
        whole[name] for name in ("tdg_ratio", "slo_attainment")
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_reads_predicted_lengths(policy):
    told, untold = (
        Simulation(scenario(policy, condition)).run().requests for condition in (Condition(PREDICTOR, 0.9), NOTHING)
    )
    assert told.drop(columns=["predicted_output_tokens"], errors="ignore").equals(
        untold.drop(columns=["predicted_output_tokens"], errors="ignore")
    )


def test_a_wrong_estimator_leaves_the_device_as_it_is():
    right, wrong = (scenario(GAIN, condition).deployment for condition in (NOTHING, Condition(ESTIMATOR, 1.5)))
    assert (right.device.coefficients == wrong.device.coefficients).all()
    scaled = right.estimator.scaled
    assert wrong.estimator.coefficients[scaled] == pytest.approx(1.5 * right.estimator.coefficients[scaled])


def test_wrong_lengths_are_never_learnt():
    """What is told is all that is known of lengths: with the statistics of one application it would change nothing."""
    told = [scenario(GAIN, Condition(LENGTHS, level)) for level in (0.1, 10.0)]
    assert [one.scheduler.settings["output_tokens"] for one in told] == pytest.approx(
        [level * told[0].workload.table["output_tokens"].mean() for level in (0.1, 10.0)]
    )
    assert len(np.unique(told[0].workload.table["application"])) == REQUESTS
    low, high = (Simulation(one).run().summary["gain"] for one in told)
    assert low != high


def test_no_two_cells_share_a_seed():
    runs = runs_of([CELL, CELL._replace(load=0.7)], 2)
    assert len({(run.cell, run.seed) for run in runs}) == len({run.seed for run in runs}) == 4
    assert {run.policy for run in runs if run.condition.what == LENGTHS} == {GAIN}


def made_up(lost):
    """Scores of two cells and two seeds. lost: TDG ratio, by policy and condition."""
    return Scores(
        {
            Run(policy, condition, cell, seed): {
                "tdg_ratio": 0.9 + 0.05 * (policy == GAIN) - lost.get((policy, condition), 0.0) + 1e-4 * seed,
                "slo_attainment": 0.8,
            }
            for policy in POLICIES
            for condition in CONDITIONS
            if applies(policy, condition)
            for cell in (CELL, CELL._replace(load=0.7))
            for seed in range(2)
        }
    )


def test_hypotheses_are_refuted_by_what_would_refute_them():
    fine = {(policy, Condition(ESTIMATOR, level)): 0.02 for policy in POLICIES for level in (0.7, 1.5)}
    fine |= {(GAIN, Condition(ESTIMATOR, level)): 0.04 for level in (0.7, 1.5)}
    assert {line[-1] for line in hypotheses(made_up(fine))} == {"not refuted"}
    bad = fine | {
        (GAIN, Condition(ESTIMATOR, 0.85)): 0.1,  # 1: below both
        (TUNED, Condition(ESTIMATOR, 0.7)): 0.1,  # 2: the other loses more
        (GAIN, Condition(ESTIMATOR, 1.5, True)): 0.03,  # 3: less than half is won back
        (GAIN, Condition(LENGTHS, 3.0)): 0.02,  # 4
    }
    refuted = [line[:3] for line in hypotheses(made_up(bad)) if line[-1] != "not refuted"]
    assert [(number, at) for number, _, at in refuted] == [
        ("1", "estimator 0.85"), ("1", "estimator 0.85"), ("2", "estimator 0.7"), ("3", "estimator 1.5, corrected"),
        ("4", "lengths 3"),
    ]  # fmt: skip


def test_a_page_and_its_picture(tmp_path):
    page = tmp_path / "docs" / "results" / "degradation.md"
    small = ["--requests", "20", "--seeds", "2", "--ledger", str(tmp_path / "ledger.jsonl")]
    study.main([str(page), *small, "--trace", "azure-code", "--device", "a100-llama3-8b"])
    text = page.read_text()
    assert text.count("\n| estimator 0.7 |") == 2 and text.count("\n| lengths 10 |") == 1
    assert (tmp_path / "docs" / "images" / "degradation.png").stat().st_size > 10_000

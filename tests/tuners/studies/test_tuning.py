"""A tuning from its first trial to its files: they hold what was run, and stopping changes nothing."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servegym.errors import ForeignStudyError
from servegym.evaluation.running import ThreadRunner
from servegym.tuners.studies.instances import instances_of
from servegym.tuners.studies.results import StudyResults
from servegym.tuners.studies.search import Search
from servegym.tuners.studies.tuning import run_tuning, save_tuning
from tests.tuners.studies.small import DOCUMENT, small

pytestmark = pytest.mark.slow


def run(config, directory: Path, jobs: int = 1, **more) -> StudyResults:
    (outcome,) = run_tuning(config, directory, ThreadRunner(jobs), **more)
    return outcome


def same(one: StudyResults, other: StudyResults) -> None:
    """All but which worker did a trial."""
    pd.testing.assert_frame_equal(one.trials.drop(columns="worker"), other.trials.drop(columns="worker"))
    for table in ("trial_runs", "validation", "slices", "test", "parameters", "differences"):
        pd.testing.assert_frame_equal(getattr(one, table), getattr(other, table))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tuning")


@pytest.fixture(scope="module")
def outcome(folder):
    return run(small(), folder)


def test_trials_are_means_of_their_runs(outcome):
    runs = outcome.trial_runs
    assert len(runs) == 6 * 4 and list(runs["seed"][:4]) == [0, 1, 2, 3]
    means = runs.groupby("trial")["tdg_ratio"].mean()
    np.testing.assert_allclose(outcome.trials["tdg_ratio"], means, rtol=1e-12)
    first = outcome.trials.iloc[0]
    assert (first["scheduler.gamma"], first["scheduler.eta"]) == (1.0, 0.045)  # 0.9 of the TPOT SLO


def test_every_run_is_what_the_simulator_says(outcome):
    """The rows of the test are runs of the policies they name, on the panel's instances."""
    search = Search(small(), "slide")
    instances = instances_of(search.config.test)
    for label, settings in (("defaults", None), ("winner", outcome.settings)):
        rows = outcome.test[outcome.test["candidate"] == label].reset_index()
        for index in (0, 3):
            found = instances.run(index, search.policies_with(settings))
            assert rows["tdg_ratio"][index] == found["tdg_ratio"]
            assert rows["seed"][index] == instances.all[index].seed >= 1_000_000


def test_the_winner_is_the_best_in_validation(outcome):
    means = outcome.validation.groupby("candidate")["tdg_ratio"].mean()
    assert len(means) == 3 and outcome.winner == means.idxmax()
    by_load = outcome.validation.groupby(["load", "candidate"])["tdg_ratio"].mean()
    for entry in outcome.document["schedule"]:
        assert by_load[entry["load"], entry["candidate"]] == by_load[entry["load"]].max()


def test_differences_are_paired(outcome):
    test = outcome.test.pivot_table(index=["load", "seed"], columns="candidate", values="tdg_ratio")
    table = outcome.differences
    row = table[(table["load"] == "all") & (table["figure"] == "tdg_ratio") & (table["candidate"] == "winner")].iloc[0]
    assert row["difference"] == pytest.approx((test["winner"] - test["defaults"]).mean())
    assert row["difference_low"] <= row["difference"] <= row["difference_high"] and row["runs"] == 4


def test_slices_change_one_parameter(outcome):
    assert set(outcome.slices["parameter"]) == {"scheduler.gamma", "scheduler.eta"}
    gammas = outcome.slices["value"][outcome.slices["parameter"] == "scheduler.gamma"].unique()
    assert list(gammas) == [0.1, 10.0] and len(outcome.slices) == 2 * 2 * 6


def test_files_hold_what_came_of_it(outcome, folder):
    save_tuning(small(), [outcome], folder)
    document = json.loads((folder / "slide/outcome.json").read_text())
    assert document["winner"]["candidate"] == outcome.winner
    assert document["winner"]["policies"]["scheduler"]["name"] == "slide-batching"
    assert document["trials"]["complete"] == 6 and document["scores"]["validation"]["meets_constraints"]
    row = pd.read_csv(folder / "studies.csv").iloc[0]
    assert row["difference"] == pytest.approx(row["winner_mean"] - row["defaults_mean"])
    trials = pd.read_csv(folder / "slide/trials.csv")
    np.testing.assert_allclose(trials["tdg_ratio"], outcome.trials["tdg_ratio"], rtol=1e-15)
    assert json.loads((folder / "tuning.json").read_text())["panel"]["requests"] == 120


def test_threads_and_starting_again_change_nothing(outcome, folder, tmp_path):
    same(outcome, run(small(), tmp_path, jobs=2))
    ran = []
    same(outcome, run(small(), folder, progress=lambda *call: ran.append(call)))
    assert {(what, done == in_all) for _, what, done, in_all in ran} == {
        ("trials", True), ("validation", True), ("test", True),
    }  # fmt: skip


def test_stopped_at_any_time_it_goes_on_to_the_same(outcome, tmp_path):
    def stop_at(stage, count):
        def progress(study, what, done, in_all):
            if what == stage and done == count:
                raise KeyboardInterrupt

        return progress

    for stage, count in (("trials", 2), ("validation", 5), ("test", 3)):
        with pytest.raises(KeyboardInterrupt):
            run(small(), tmp_path, progress=stop_at(stage, count))
    same(outcome, run(small(), tmp_path))


def test_more_trials_go_on_from_those_there_are(outcome, tmp_path):
    fewer = run(small(trials=3), tmp_path)
    pd.testing.assert_frame_equal(
        fewer.trials.drop(columns="worker"), outcome.trials[:3].drop(columns="worker"), check_dtype=False
    )
    same(outcome, run(small(), tmp_path))


def test_another_panel_in_the_same_folder_is_refused(outcome, folder):
    shorter = {**DOCUMENT["panel"], "requests": 60}
    with pytest.raises(ForeignStudyError, match=r"study 'small\.slide' in .* is another one: other panel"):
        run(small(panel=shorter), folder)


def test_pruning_depends_on_the_runs_and_not_on_how_many_run_at_a_time(tmp_path):
    panel = {"trace": ["azure-conv"], "device": ["a100-llama3-8b"], "load": [3.0], "requests": 120, "seeds": 12}
    config = small(panel=panel, pruner="wilcoxon", group=4, trials=8, sampler="random", slices=0)
    one, two = run(config, tmp_path / "1"), run(config, tmp_path / "2", jobs=3)
    same(one, two)
    pruned = one.trials[one.trials["state"] == "pruned"]
    assert len(pruned) and set(pruned["instances"]) <= {4, 8}
    complete = one.trials[one.trials["state"] == "complete"]
    assert set(complete["instances"]) == {12} and 0 in complete.index


def test_several_objectives_and_a_constraint(tmp_path):
    config = small(objectives=["tdg", "high_priority_attainment"], sampler="nsga2", slices=0,
                   constraints={"low_priority_attainment": 0.999})  # fmt: skip
    outcome = run(config, tmp_path)
    assert not outcome.trials["feasible"].any() and outcome.winner == "defaults"
    assert list(outcome.validation["candidate"].unique()) == ["defaults"]


def test_prefill_and_decode_engines_have_parameters_of_their_own(tmp_path):
    panel = {"trace": ["azure-conv"], "device": ["a100-llama3-8b"], "load": [3.0], "requests": 60, "seeds": 1,
             "prefill": 1, "decode": 1}  # fmt: skip
    tune = ["scheduler.gamma", "decode_scheduler.max_num_batched_tokens"]
    study = {"scheduler": "slide-batching", "decode_scheduler": "vllm-fcfs", "router": "min-load", "tune": tune}
    config = small(panel=panel, studies={"pools": study}, slices=0)
    outcome = run(config, tmp_path)
    assert outcome.trials["decode_scheduler.max_num_batched_tokens"].nunique() > 3
    instances = instances_of(config.panel)
    policies = Search(config, "pools").policies_with(
        {"scheduler": {}, "decode_scheduler": {"max_num_batched_tokens": 77}}
    )
    decoding = instances.scenario(0, policies).deployment.pools[1].scheduler
    assert decoding.settings == {"max_num_batched_tokens": 77}

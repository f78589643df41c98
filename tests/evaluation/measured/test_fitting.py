"""Terms fitted to measured runs: what made them is found, and no run is judged by a fit to itself."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.measured import fitted_study
from servegym.errors import ProfileError, WorkloadError
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.few_runs import DRAWS, curve, draws, errors_left, means_error, needed
from servegym.evaluation.measured.figures import METRICS
from servegym.evaluation.measured.fitted_profile import fitted_document
from servegym.evaluation.measured.fitting import Fitted, fit
from servegym.evaluation.measured.runs import read_own
from servegym.evaluation.measured.serving import simulated
from servegym.latency_models.documents import to_text
from servegym.latency_models.profile import load_profile, parse_profile, profile_document

pytestmark = pytest.mark.slow

NONE = EngineTerms("none", "")
PROFILE = load_profile("a100-llama3-8b")
TRUE = Fitted(1.08, 0.0008, 0.012)


def measured(tmp_path, name, gap_s, terms=TRUE, failed=False):
    """A run as an engine with these terms would have served it."""
    numbers = np.random.default_rng(len(name))
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(numbers.exponential(gap_s, 60)), "prompt_tokens": numbers.integers(50, 3000, 60),
            "output_tokens": numbers.integers(5, 60, 60), "ttft_s": 0.1, "e2e_s": 1.0, "failed": False,
        }
    )  # fmt: skip
    file = tmp_path / f"{name}.csv"
    table.to_csv(file, index=False)
    run = read_own(file, 128, 2048)
    served = terms.served(run, PROFILE, NONE)
    run = replace(run, requests=run.requests.assign(**{f"{one}_s": served[f"{one}_s"].to_numpy() for one in METRICS}))
    run.requests.loc[0, "failed"] = failed
    return run, PROFILE, NONE


@pytest.fixture
def settings(tmp_path):
    return [measured(tmp_path, name, gap_s) for name, gap_s in (("a", 1.0), ("bb", 0.4), ("ccc", 0.15), ("dddd", 0.1))]


def test_what_made_the_runs_is_found(settings):
    found = fit(settings)
    assert found.client_s == pytest.approx(TRUE.client_s, rel=0.2)
    assert found.factor == pytest.approx(TRUE.factor, rel=0.03)
    before, after = ([means_error(setting, terms) for setting in settings] for terms in (Fitted(), found))
    for metric in METRICS:
        assert max(abs(error[metric]) for error in before) > 7
        assert max(abs(error[metric]) for error in after) < 1


def test_runs_that_say_nothing_leave_the_prior(tmp_path):
    found = fit([measured(tmp_path, "a", 1.0, Fitted())])
    assert found.factor == pytest.approx(1, abs=0.01)
    assert found.step_cpu_s < 1e-4 > found.client_s / 10


def test_one_run_that_is_far_off_does_not_decide_for_all(settings, tmp_path):
    odd = measured(tmp_path, "odd", 0.2)
    odd[0].requests["ttft_s"] *= 10
    for setting in settings:
        error = means_error(setting, fit([*settings, odd]))
        assert max(abs(error["e2e"]), abs(error["itl"])) < 3


def test_runs_that_clients_gave_up_on_are_not_fitted(settings, tmp_path):
    given_up = measured(tmp_path, "up", 0.2, Fitted(3.0, 0.05, 1.0), failed=True)
    assert fit([*settings, given_up]) == fit(settings)
    with pytest.raises(WorkloadError, match="nothing to fit"):
        fit([given_up])
    assert all(given_up not in drawn for drawn in draws([*settings, given_up]))
    assert max(len(drawn) for drawn in draws([*settings, given_up])) == 4
    assert set(errors_left([settings[0], given_up])["run"]) == {"a", "up"}


def test_no_run_is_judged_by_a_fit_to_itself(settings):
    told = []
    errors = errors_left(settings[:3], lambda done, in_all: told.append((done, in_all)))
    assert errors.groupby("fitted").size().to_dict() == {0: 3, 1: 3 * 2, 2: 3 * 1}
    assert told == [(done, 7) for done in range(8)]
    assert (curve(errors).loc[0] > 7).all() and (curve(errors).loc[2] < 2).all()
    assert needed(curve(errors), 3.0) == dict.fromkeys(METRICS, 2)
    assert needed(curve(errors), 1e-9) == dict.fromkeys(METRICS, None)
    assert needed(curve(errors), 100.0) == dict.fromkeys(METRICS, 0)
    many = [(replace(settings[0][0], name=str(number)), PROFILE, NONE) for number in range(8)]
    counts = [len(drawn) for drawn in draws(many)]
    assert {count: counts.count(count) for count in set(counts)} == {0: 1} | dict.fromkeys(range(1, 8), DRAWS)


def test_runs_needed_are_those_from_which_on_it_stays():
    found = pd.DataFrame({"e2e": [9, 4, 6, 4], "itl": [9, 8, 7, 6], "ttft": [1, 1, 1, 1]}, index=range(4), dtype=float)
    assert needed(found, 5.0) == {"e2e": 3, "itl": None, "ttft": 0}


@pytest.mark.parametrize("base", ["a100-llama3-8b", "a100-qwen3-30b-a3b"])
def test_the_written_profile_serves_as_fitted(settings, base):
    base, document = load_profile(base), profile_document(base)
    settings = [(run, base, terms) for run, _, terms in settings]
    text = to_text(fitted_document("mine", document, base, TRUE, settings, "a command"))
    written = parse_profile(json.loads(text), "mine")
    for run, _, _ in settings:
        expected, found = TRUE.served(run, base, NONE), simulated(run, written, NONE)
        for metric in METRICS:
            np.testing.assert_allclose(found[f"{metric}_s"], expected[f"{metric}_s"], rtol=1e-5)
    points = written.error["device_vs_serving"]["points"]
    assert len(points) == 3 * len(settings) and all(point["fitted"] for point in points)
    assert written.front_end.request_s == pytest.approx(TRUE.client_s)
    with pytest.raises(ProfileError, match="name"):
        fitted_document("Not A Name", document, base, TRUE, settings, "a command")


def test_a_model_is_judged_by_the_others(settings):
    judged = [
        fitted_study.Judged(replace(run, model=model), by, TRUE, dict.fromkeys(METRICS, 10.0 * number))
        for number, (run, _, _) in enumerate(settings)
        for model in (f"model {number // 2}",)
        for by in (fitted_study.NOTHING, fitted_study.OTHERS, fitted_study.SAME, fitted_study.ITSELF)
    ]
    text = fitted_study.section(judged)
    assert "| runs of other models | 4 | 15.0 / 15.0 / 15.0 | missed |" in text
    assert "| model 1 | 1.080 | 0.80 | 12.0 |" in text
    settings = [(replace(run, model="x" if number < 2 else "y"), *rest) for number, (run, *rest) in enumerate(settings)]
    fitted_to = fitted_study._fitted_to(settings[0], settings)
    names = {by: [run.name for run, _, _ in chosen] for by, chosen in fitted_to.items()}
    assert list(names.values()) == [[], ["ccc", "dddd"], ["bb"], ["a"]]

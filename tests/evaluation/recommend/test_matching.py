"""A recording that some engine made is matched after fitting, on the half that nothing was fitted to."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.fitting import Fitted
from servegym.evaluation.measured.runs import read_own
from servegym.evaluation.recommend.matching import ERRS, Figure, Match, match
from servegym.latency_models.profile import load_profile

PROFILE = load_profile("a100-llama3-8b")
TRUE = Fitted(1.0, 0.0, 0.02)


@pytest.fixture
def run(tmp_path):
    """A run as an engine with these terms would have served it."""
    numbers = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(numbers.exponential(0.5, 80)), "prompt_tokens": numbers.integers(50, 2000, 80),
            "output_tokens": numbers.integers(5, 60, 80), "ttft_s": 0.1, "e2e_s": 1.0,
        }
    )  # fmt: skip
    table.to_csv(tmp_path / "own.csv", index=False)
    read = read_own(tmp_path / "own.csv", 128, 2048)
    served = TRUE.served(read, PROFILE, EngineTerms("none", ""))
    return replace(read, requests=read.requests.assign(**{name: served[name] for name in ("ttft_s", "itl_s", "e2e_s")}))


def test_what_made_the_recording_is_found(run):
    found = match(run, PROFILE)
    assert found.fitted.client_s == pytest.approx(TRUE.client_s, rel=0.2)
    assert found.left["client_s"] < min(0.5, found.left["factor"])
    for figure in found.figures:
        assert abs(figure.error_percent(True)) < 5
    assert abs(found.figures[0].error_percent(False)) > 10
    first, *_, error = found.lines()
    assert first.startswith("Fitted to the first half: ") and "the way from client to queue + " in first
    assert "within 10 %" in error


def test_too_few_requests_are_not_fitted(run):
    short = replace(run, requests=run.requests[:30])
    found = match(short, PROFILE)
    assert not found.is_fitted and found.lines()[0] == "Nothing is fitted: 30 requests are too few, 40 are enough."


def test_a_recording_that_clients_gave_up_on_is_not_fitted(run):
    failed = run.requests["failed"].to_numpy().copy()
    failed[:20] = True
    found = match(replace(run, requests=run.requests.assign(failed=failed)), PROFILE)
    assert not found.is_fitted and "clients gave up" in found.lines()[0]


def test_what_a_recording_does_not_tell():
    found = Match((Figure("ttft", "p50", 1.0, 1.0, 1.0),), Fitted(), {"factor": 0.9, "client_s": 0.1})
    assert found.lines()[:2] == [
        "Fitted to the first half: the way from client to queue + 0.00 ms.",
        "The recording does not determine the time of every batch (taken as x 1).",
    ]


@pytest.mark.parametrize("metric", ERRS)
def test_what_errs_most_is_named(metric):
    figures = (Figure("ttft", "p50", 1.0, 1.05, np.nan), Figure(metric, "p90", 1.0, 0.5, np.nan))
    assert Match(figures, None, {}, "x").lines()[-1].endswith(f"-50 %. Its causes are {ERRS[metric]}.")

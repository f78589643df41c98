"""Conclusions from a study whose numbers are known."""

import dataclasses

import optuna
import pytest

from servegym.tuners.studies.analysis import (
    conclusions,
    indifferent,
    optimism,
    parameters_of,
    sliced,
)  # fmt: skip
from servegym.tuners.studies.search import Search
from servegym.tuners.studies.study import importance
from tests.tuners.studies.made import made, score
from tests.tuners.studies.small import small


def test_the_parameter_that_matters_is_found():
    search, results = Search(small(), "slide"), made()
    trials = [
        optuna.create_trial(
            params={name: row[name] for name in search.space.names},
            distributions=search.space.distributions,
            value=row["tdg_ratio"],
        )
        for row in results.trials.to_dict("records")
    ]
    shares = importance(search, trials)
    assert list(shares) == ["scheduler.gamma", "scheduler.eta"]
    assert shares["scheduler.gamma"] > 0.8 and sum(shares.values()) == pytest.approx(1)
    assert importance(search, trials[:19]) == {}  # too few
    assert "scheduler.gamma 90%, scheduler.eta 10%" in conclusions(results)[-1]


def test_slices_are_differences_to_the_winner_on_the_same_runs():
    table = sliced(made()).set_index(["parameter", "value"])
    assert table.loc[("scheduler.gamma", 0.1), "difference"] == pytest.approx(score(0.1, 0) - score(3.0, 0))
    assert table.loc[("scheduler.gamma", 3.0), "difference"] == 0
    # All seeds differ by the same there, so that no resample differs.
    assert table.loc[("scheduler.gamma", 0.1), "high"] == pytest.approx(score(0.1, 0) - score(3.0, 0))


def test_values_within_chance_are_named():
    assert indifferent(made()) == {"scheduler.gamma": "3", "scheduler.eta": "all 2 values tried"}


def test_the_best_trial_is_held_against_itself_on_fresh_seeds():
    results = made()
    luck = optimism(results)
    assert luck.trial == results.document["trials"]["best"]
    assert luck.panel == pytest.approx(results.trials["tdg_ratio"][luck.trial] - results.trials["tdg_ratio"][0])
    assert luck.validation == pytest.approx(score(2.0, 0) - score(1.0, 0))


def test_a_best_trial_that_was_not_run_again_has_no_second_score():
    results = made()
    rows = results.validation[results.validation["candidate"] != f"trial {results.document['trials']['best']}"]
    assert optimism(dataclasses.replace(results, validation=rows)).validation is None


def test_conclusions_hold_the_numbers_of_the_test():
    lines = conclusions(made())
    gain = score(3.0, 0) - score(1.0, 0)
    assert lines[0].startswith(f"Winner against defaults on the test: {gain:+.4f}")
    assert "better" in lines[0]
    assert f"{score(4.0, 0) - score(3.0, 0):+.4f}" in lines[1]


def test_kept_defaults_are_a_conclusion():
    results = made(winner=1.0)
    results.document["winner"] |= {"is_defaults": True, "candidate": "defaults"}
    assert conclusions(results)[0] == "No trial was better than the defaults on fresh seeds: the defaults stay."


def test_a_reader_sees_units_and_the_best_at_each_load():
    gamma, eta = parameters_of(made())
    assert gamma["parameter"] == "scheduler.gamma" and eta["parameter"] == "scheduler.eta, s"
    assert (gamma["default"], gamma["winner"], gamma["best at load 1.4"]) == ("1", "3", "4")

"""A study is kept row by row: killed anywhere, it goes on from there and ends as if nothing had been."""

import dataclasses
import json

import pytest

from experiments.claims.harness.study import Study
from servegym.errors import ExperimentError
from tests.experiments.claims.synthetic import TINY, Measured, synthetic_claim

CELLS = 6


def run(directory, measured=None, jobs=1, fresh=False, claim=None):
    study = Study(claim or synthetic_claim(), TINY)
    if measured is not None:
        study._row = lambda cell: {**cell._asdict(), **measured(cell)}  # the same identity, counted calls
    seen = []
    outcome = study.run(directory, lambda done, cells: seen.append((done, cells)), jobs, fresh)
    return outcome, seen


def ledger(directory):
    (path,) = (directory / "cells").iterdir()
    return path


def test_runs_every_cell_once_and_judges_them(tmp_path):
    measured = Measured()
    outcome, seen = run(tmp_path, measured)
    assert measured.calls == CELLS
    assert seen == [(done, CELLS) for done in range(CELLS + 1)]
    assert outcome.holds is True
    assert outcome.settings[0].checks[1].verdict == "fails"  # examined, no say


def test_rows_that_are_there_are_not_run_again(tmp_path):
    first, _ = run(tmp_path, Measured())
    again = Measured()
    second, _ = run(tmp_path, again)
    assert again.calls == 0
    assert second.to_json() == first.to_json()


@pytest.mark.parametrize("kept_bytes_of_the_last_line", [0, 1, 20])
def test_torn_file_loses_only_the_torn_row(tmp_path, kept_bytes_of_the_last_line):
    whole, _ = run(tmp_path, Measured())
    lines = ledger(tmp_path).read_bytes().splitlines(keepends=True)
    ledger(tmp_path).write_bytes(b"".join(lines[:-1]) + lines[-1][:kept_bytes_of_the_last_line])
    again = Measured()
    outcome, _ = run(tmp_path, again)
    assert again.calls == 1
    assert outcome.to_json() == whole.to_json()


def test_interrupt_keeps_what_is_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Measured(stop_after=2))
    again = Measured()
    run(tmp_path, again)
    assert again.calls == CELLS - 2


def test_fresh_forgets(tmp_path):
    run(tmp_path, Measured())
    again = Measured()
    run(tmp_path, again, fresh=True)
    assert again.calls == CELLS


def test_rows_of_another_measure_are_left_alone(tmp_path):
    run(tmp_path)

    def another(cell):
        return {"score": float(cell.seed)}

    outcome, _ = run(tmp_path, claim=synthetic_claim(another))
    assert len(list((tmp_path / "cells").iterdir())) == 2
    assert outcome.holds is False


def test_rows_of_other_seeds_are_kept_apart(tmp_path):
    first, _ = run(tmp_path)
    fresh = Study(synthetic_claim(), dataclasses.replace(TINY, seeds=(11, 12, 13)))
    outcome = fresh.run(tmp_path, lambda done, cells: None)
    assert sorted(outcome.rows["seed"].unique()) == [11, 12, 13]
    names = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "cells").iterdir())
    assert names == ["synthetic-tiny-1", "synthetic-tiny-11"]
    again, _ = run(tmp_path, Measured(stop_after=0))
    assert again.to_json() == first.to_json()


def test_judges_see_only_what_was_measured_and_the_page_what_was_served(tmp_path):
    outcome, _ = run(tmp_path)
    assert "served" not in outcome.rows
    assert list(outcome.served.columns) == ["family", "device", "load", "served"] and len(outcome.served) == CELLS


def test_row_of_another_study_is_refused(tmp_path):
    run(tmp_path)
    stranger = {**json.loads(ledger(tmp_path).read_text().splitlines()[1]), "seed": 99}
    with ledger(tmp_path).open("a") as file:
        file.write(json.dumps(stranger) + "\n")
    with pytest.raises(ExperimentError, match=r"line 8: .*seed=99.* is not part of synthetic"):
        run(tmp_path)


def test_outcome_is_the_same_however_many_run_at_a_time(tmp_path):
    one, _ = run(tmp_path / "one", jobs=1)
    four, _ = run(tmp_path / "four", jobs=4)
    assert one.to_json() == four.to_json()

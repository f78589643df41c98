"""`servegym reproduce`, `bench` and `leaderboard`: the studies of the clone, from any folder."""

import pytest
from typer.testing import CliRunner

from servegym.cli import studies
from servegym.cli.app import app


@pytest.mark.slow
def test_a_study_runs_from_any_folder(servegym_process):
    done = servegym_process("reproduce", "--list")
    assert done.status == 0 and "proserve-fig15" in done.stdout


@pytest.mark.slow
def test_help_and_exit_status_are_the_studys(servegym_process):
    done = servegym_process("bench", "--help")
    assert done.status == 0 and "--dynamo" in done.stdout
    assert "no-such-claim" in servegym_process("reproduce", "no-such-claim").refusal


@pytest.mark.parametrize("command", ["reproduce", "bench", "leaderboard"])
def test_outside_a_clone_it_says_where_studies_are(servegym, monkeypatch, command):
    monkeypatch.setattr(studies, "clone_root", lambda: None)
    refusal = servegym(command).refusal
    assert f"python -m experiments {command}" in refusal and "clone" in refusal


def test_they_are_listed_with_the_other_commands():
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert all(name in listed for name in ("reproduce", "bench", "leaderboard"))

"""A few bad commands and random simulations, and a kill; `make hostile` runs them in numbers."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from servegym.errors import PolicyError
from tests.hostile import simulations
from tests.hostile.commands import Ended, Trial, commands, forked, trials, tried, wrong
from tests.hostile.damage import FILES, fill, state
from tests.hostile.kills import kill_and_go_on, whole_run
from tests.hostile.simulations import chunk_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trial", list(trials(12, seed=5)), ids=lambda trial: trial.arguments[0])
def test_a_few_bad_commands(trial: Trial) -> None:
    said, _ = tried(trial)
    assert not said, trial


def test_a_few_random_simulations() -> None:
    ended = list(chunk_of(seed=5, chunk=0, count=10))
    assert len(ended) == 10 and not [one for one in ended if one.startswith("WRONG")], ended


def test_a_kill_loses_nothing() -> None:
    assert kill_and_go_on("compare", *whole_run("compare"), random.Random(5)) == ""


# The trials notice what is wrong


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PolicyError("at 7.5 s no"), "refused: at N s no"),
        (AssertionError("lost"), "WRONG: AssertionError at fails: lost"),
    ],
)
def test_how_a_simulation_may_end(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(scenario: object) -> str:
        raise error

    monkeypatch.setattr(simulations, "run", fails)
    monkeypatch.setattr(simulations, "policies_of", lambda scenario: "")
    assert simulations.ending(SimpleNamespace()).startswith(words)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ended", "words"), [
    (Ended(0, "", ""), ""),
    (Ended(2, "", "servegym: --rate is nan; it should be above 0\n"), ""),
    (Ended(None, "", "servegym: compiling kernels ...\n"), ""),
    (Ended(None, "", ""), "nothing is said"),
    (Ended(1, "", "Traceback (most recent call last):\nValueError: x\n"), "traceback: ValueError"),
    (Ended(2, "", ""), "without a line"),
    (Ended(2, "", "servegym: \n"), "without a line"),
    (Ended(2, "", "servegym: this is wrong here\nservegym: and that too\n"), "2 lines"),
    (Ended(0, "", "/x/y.py:3: RuntimeWarning: overflow\n"), "Python path"),
    (Ended(-11, "", ""), "status -11"),
])  # fmt: skip
def test_how_a_command_may_end(ended: Ended, words: str) -> None:
    said = wrong(Trial(["simulate"]), ended)
    assert bool(said) == bool(words) and words in said


def test_every_command_is_tried() -> None:
    names = {name for name, _ in commands()}
    assert {
        " ".join(trial.arguments[: len(name.split())]) for name in names for trial in trials(len(names), 0)
    } >= names


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path)
    before = state(tmp_path)
    assert state(tmp_path) == before and len(FILES) > 80
    (tmp_path / "good.csv").write_bytes(b"")
    assert state(tmp_path) != before


def test_a_fork_ends_as_the_command_does(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    shown = forked(Trial(["--version"]), folder)
    assert (shown.status, shown.stdout[:8], shown.stderr) == (0, "servegym", "")
    failed = forked(Trial(["simulat"]), folder)
    assert failed.status == 2 and failed.stderr.startswith("servegym: ")

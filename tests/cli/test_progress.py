"""Progress where standard error is no terminal: lines in a log."""

import pytest
from rich.console import Console

from servegym.cli import progress
from servegym.cli.progress import LINE_EVERY_S, bar_of, waiting
from servegym.cli.train import bar


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on: a list of one number of seconds."""
    now_s = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    return now_s


def test_a_log_gets_a_line_every_thirty_seconds(clock, capsys):
    with bar_of("runs") as (done, report):
        for number in range(5):
            report(number, 5)
            clock[0] += 0.6 * LINE_EVERY_S
        said = capsys.readouterr().err
    assert [line for line in said.splitlines() if " in " in line] == ["runs: 2 of 5 in 36 s", "runs: 4 of 5 in 72 s"]
    assert done == [4]


def test_a_short_line_cuts_the_text_not_the_share_done(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with bar() as report:
        report(1.0, "8,640 scenarios, in validation +0.0138 ± 0.0067 to the base, the best of them so far")
    said = capsys.readouterr().err.strip()
    assert len(said) <= 80 and "100% 0:00:00 8,640 scenarios, in validation" in said


def test_what_is_prepared_is_shown_until_work_begins(capsys):
    console = Console(stderr=True, force_terminal=True, width=80)
    with waiting(console, "preparing") as prepared:
        prepared()
        prepared()
    assert "preparing" in capsys.readouterr().err
    with waiting(Console(stderr=True, force_terminal=False), "preparing"):
        pass
    assert capsys.readouterr().err == ""


def test_short_work_says_nothing_in_between(clock, capsys):
    with bar_of("runs") as (_, report):
        report(1, 2)
        report(2, 2)
        assert " in " not in capsys.readouterr().err

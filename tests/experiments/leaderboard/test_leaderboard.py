"""The leaderboard is what its entries say, and they come out again: one, and those whose code has changed."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.leaderboard import entry as leaderboard
from experiments.leaderboard.command import app
from experiments.leaderboard.entry import PANELS, code_of, entries, read_entry, verify
from experiments.leaderboard.page import page
from servegym.baselines import registry
from servegym.errors import ExperimentError

PAGE = Path(__file__).parents[3] / "docs" / "leaderboard.md"


def test_the_page_is_what_the_entries_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "servegym leaderboard write makes it anew"


def test_the_command_writes_the_page_and_knows_the_entries(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["write", str(tmp_path / "page.md")])
    assert done.exit_code == 0
    assert (tmp_path / "page.md").read_text("utf-8") == page()
    wrong = CliRunner().invoke(app, ["verify", "nobody"])
    assert isinstance(wrong.exception, ExperimentError)
    assert "there is no entry nobody; there are router-gorouting" in str(wrong.exception)


def test_every_shipped_scheduler_and_router_is_on_each_panel_of_its_kind() -> None:
    found = {(entry.panel, entry.policy) for entry in entries()}
    for kind, names in (("scheduler", registry.scheduler_names()), ("router", registry.router_names())):
        assert {(panel, name) for panel in PANELS[kind] for name in names} <= found


@pytest.mark.slow
def test_an_entry_comes_out_again_and_one_that_was_changed_does_not() -> None:
    edf = read_entry("scheduler-edf")
    assert verify(edf, cells=True) == 15  # three loads, five seeds
    wrong = dataclasses.replace(edf, tdg_ratios=[edf.tdg_ratios[0] + 0.1, *edf.tdg_ratios[1:]])
    with pytest.raises(ExperimentError, match=r"scheduler-edf does not come out as it says: .*measure it anew"):
        verify(wrong, cells=True)


@pytest.mark.slow
def test_entries_whose_policy_has_changed_come_out_again() -> None:
    for entry in entries():
        if code_of(entry.policy, entry.kind) != entry.code:
            verify(entry, cells=True)


def test_what_is_no_entry_is_said(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"there is no entry nobody; there are .*scheduler-edf"):
        read_entry("nobody")
    (tmp_path / "mine.json").write_text('{"policy": "mine"}', "utf-8")
    with pytest.raises(ExperimentError, match=r"mine\.json is no entry"):
        read_entry(tmp_path / "mine.json")
    with pytest.raises(ExperimentError, match="there are scheduler and router"):
        leaderboard.measure("edf", "scaler", "nobody", "leaderboard")
    with pytest.raises(ExperimentError, match=r"panel 'session_fleet'; for a scheduler there are leaderboard"):
        leaderboard.measure("edf", "scheduler", "nobody", "session_fleet")

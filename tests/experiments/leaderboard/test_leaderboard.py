"""The leaderboard is what its entries say, and they come out again: one, and those whose code has changed."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.leaderboard import entry as leaderboard
from experiments.leaderboard import searched
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
    old = [entry.name for entry in entries() if leaderboard.is_stale(entry)]
    assert not old or f"{len(old)} entries were measured with other code" in done.output
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


@pytest.mark.slow
def test_searches_that_were_of_other_code_find_the_same(tmp_path: Path) -> None:
    for panel in searched.PANELS:
        if any(panel in line for line in searched.stale()):
            searched.verify_search(panel, tmp_path)


@pytest.mark.slow
def test_a_search_finds_the_same_again_and_another_figure_is_told(tmp_path: Path, monkeypatch) -> None:
    searched.verify_search("mixed_fleet", tmp_path, scenario=12)
    (row,) = [row for row in searched.rows_of("mixed_fleet") if row["seed"] == "3500012"]
    monkeypatch.setattr(searched, "rows_of", lambda panel: [row | {"slo_attainment": "0.9"}] * 13)
    with pytest.raises(
        ExperimentError, match=r"seed 3500012, finds a slo_attainment of 0\.955000, not 0\.9; search again"
    ):
        searched.verify_search("mixed_fleet", tmp_path, scenario=12)


def test_a_search_of_other_code_is_told_and_of_unknown_code_that_it_is_not_checked(monkeypatch) -> None:
    monkeypatch.setattr(searched, "code_of_search", lambda panel: "another")
    assert [line.partition(";")[0] for line in searched.stale()] == [
        f"best found on {panel}: searched with other code than there is" for panel in searched.PANELS
    ]
    codes = {"session_fleet": "", "mixed_fleet": "another"}
    monkeypatch.setattr(searched, "rows_of", lambda panel: [{"code": codes[panel]}])
    assert searched.stale() == [
        "best found on session_fleet: not checked, as it is not known what it was searched with"
    ]


def test_what_a_search_had_is_its_panel_policies_and_score(monkeypatch) -> None:
    before = searched.code_of_search("mixed_fleet")
    assert before != searched.code_of_search("session_fleet")
    monkeypatch.setattr(searched, "score_identity", lambda gain, kind: {"gain": "another"})
    assert searched.code_of_search("mixed_fleet") != before
    monkeypatch.undo()
    assert searched.code_of_search("mixed_fleet") == before


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


def test_without_a_sub_command_it_shows_them(study):
    done = study("leaderboard")
    assert (done.status, done.stderr) == (0, "") and "verify" in done.stdout

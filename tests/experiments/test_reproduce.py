"""`python -m experiments reproduce` at the keyboard and in a script."""

import json
import sys

import pytest

from experiments.__main__ import main
from experiments.claims.harness import settings

pytestmark = pytest.mark.slow

TINY = settings.Size("quick", ("azure-conv",), ("a100-llama3-8b",), (1, 2), 30)
PROMISED = {"claim", "paper", "measured", "interval", "holds", "reason"}


@pytest.fixture
def servegym(monkeypatch, tmp_path):
    """Run the command in an empty folder, small: returns its exit status."""
    monkeypatch.setattr(settings, "QUICK", TINY)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["experiments", "reproduce", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code

    return run


def test_json_of_a_claim_is_one_object_and_all_there_is_on_standard_output(servegym, capsys):
    assert servegym("proserve-fig18", "--quick", "--json", "-") == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert set(document) >= PROMISED
    assert document["claim"] == "proserve-fig18"
    assert "Written: results/reproduce/results.md" in captured.err


def test_json_of_several_claims_is_a_list_of_them(servegym, tmp_path):
    assert servegym("proserve-mape", "proserve-fig16-17", "--quick", "--json", "results.json", "--out", "kept") == 0
    documents = json.loads((tmp_path / "results.json").read_text())["claims"]
    assert [document["claim"] for document in documents] == ["proserve-mape", "proserve-fig16-17"]
    assert (tmp_path / "kept" / "images" / "proserve-fig16-17.png").is_file()


def test_page_goes_where_it_is_asked_for(servegym, tmp_path):
    assert servegym("proserve-mape", "--quick", "--page", "docs/results.md") == 0
    assert "# proserve-mape" in (tmp_path / "docs" / "results" / "proserve-mape.md").read_text("utf-8")
    assert "(results/proserve-mape.md)" in (tmp_path / "docs" / "results.md").read_text("utf-8")


def test_second_time_nothing_is_run_again(servegym, capsys, monkeypatch):
    arguments = ("proserve-fig16-17", "--quick", "--json", "-")
    assert servegym(*arguments) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("experiments.claims.harness.study.Study._row", None)
    assert servegym(*arguments) == 0
    assert capsys.readouterr().out == first


def test_seeds_are_fresh_ones_and_page_document_and_file_name_them(servegym, capsys, tmp_path):
    arguments = ("proserve-mape", "--quick", "--seeds", "10000", "--json", "-")
    assert servegym(*arguments) == 0
    assert json.loads(capsys.readouterr().out)["size"]["seeds"] == [10000, 10001]
    page = (tmp_path / "results" / "reproduce" / "results" / "proserve-mape.md").read_text("utf-8")
    assert "`servegym reproduce proserve-mape --quick --seeds 10000` (quick size)" in page
    assert "2 seeds (10000 to 10001)" in page
    (kept,) = (tmp_path / "results" / "reproduce" / "cells").iterdir()
    assert kept.name.startswith("proserve-mape-quick-10000-")


@pytest.mark.parametrize(("first", "said"), [("500", "which were looked at"), ("-5", "a seed is 0 or more")])
def test_seeds_that_are_not_fresh_are_refused_in_one_line(servegym, capsys, tmp_path, first, said):
    assert servegym("proserve-mape", "--quick", "--seeds", first) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_another_device_has_pages_apart_and_leaves_those_of_the_claim_alone(servegym, capsys, tmp_path):
    arguments = ("proserve-mape", "--quick", "--device", "h100-llama3-8b")
    assert servegym(*arguments, "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["size"]["devices"] == ["h100-llama3-8b instead of a100-llama3-8b"]
    folder = tmp_path / "results" / "reproduce"
    page = (folder / "on-h100-llama3-8b" / "results" / "proserve-mape.md").read_text("utf-8")
    assert "--device h100-llama3-8b --instead-of a100-llama3-8b`" in page
    assert not (folder / "results.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("proserve-mape", "--device", "h900"), "unknown profile 'h900'"),
        (
            ("qoserve-medha", "--device", "h100-llama3-8b", "--instead-of", "a6000-llama3.1-8b"),
            "has no setting on a6000",
        ),
        (("--device", "h100-llama3-8b", "--instead-of", "a6000-llama3.1-8b"), "no claim has a setting on a6000"),
        (("proserve-mape", "--instead-of", "a100-llama3-8b"), "without --device"),
    ],
)
def test_device_that_cannot_stand_in_is_refused_in_one_line(servegym, capsys, tmp_path, arguments, said):
    assert servegym(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_claim_those_are_listed_that_have_a_setting_on_the_device_replaced(servegym, capsys):
    arguments = ("--list", "--device", "h100-llama3-8b", "--instead-of", "a100-qwen2.5-14b-tp2", "--json", "-")
    assert servegym(*arguments) == 0
    stated = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["claim"] for claim in stated] == ["flowprefill-fig9", "flowprefill-fig12", "flowprefill-fig13"]


def broken(monkeypatch, id, error):
    """Let the rows of one claim end in an error."""
    from experiments.claims.harness.study import Study

    row = Study._row

    def failing(self, cell):
        if self.claim.id == id:
            raise error
        return row(self, cell)

    monkeypatch.setattr(Study, "_row", failing)


def test_claim_that_fails_stops_no_other_and_is_told_at_the_end(servegym, capsys, monkeypatch, tmp_path):
    broken(monkeypatch, "proserve-mape", ZeroDivisionError("by hand"))
    assert servegym("proserve-mape", "proserve-fig16-17", "--quick", "--json", "found.json") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("servegym: proserve-mape ended in ZeroDivisionError: by hand; where, is in ")
    assert "Traceback" in (tmp_path / "results" / "reproduce" / "proserve-mape-error.txt").read_text("utf-8")
    documents = json.loads((tmp_path / "found.json").read_text())["claims"]
    assert [document["claim"] for document in documents] == ["proserve-fig16-17"]
    assert "proserve-fig16-17" in (tmp_path / "results" / "reproduce" / "results.md").read_text("utf-8")


def test_pages_of_claims_that_are_done_are_there_when_the_next_is_interrupted(servegym, capsys, monkeypatch, tmp_path):
    with monkeypatch.context() as stopped:
        broken(stopped, "proserve-fig16-17", KeyboardInterrupt())
        assert servegym("proserve-mape", "proserve-fig16-17", "--quick") == 130
    folder = tmp_path / "results" / "reproduce" / "results"
    assert [page.name for page in folder.iterdir()] == ["proserve-mape.md"]
    broken(monkeypatch, "proserve-mape", AssertionError("it is done already"))
    assert servegym("proserve-mape", "proserve-fig16-17", "--quick") == 0
    assert {page.name for page in folder.iterdir()} == {"proserve-mape.md", "proserve-fig16-17.md"}


def test_list_states_the_claims_and_runs_nothing(servegym, capsys, tmp_path):
    assert servegym("--list", "--json", "-") == 0
    stated = json.loads(capsys.readouterr().out)["claims"]
    assert len(stated) >= 8
    assert all(set(claim) == {"claim", "figure", "paper", "hypothesis", "refuted_by"} for claim in stated)
    assert not list(tmp_path.iterdir())


def test_unknown_claim_ends_with_one_clear_line(servegym, capsys):
    assert servegym("proserve-fig33") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("servegym: unknown claim 'proserve-fig33' (did you mean 'proserve-fig3'?)")
    assert captured.err.count("\n") == 1


def test_interrupt_says_what_is_kept(servegym, capsys, monkeypatch):
    def interrupted(self, cell):
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.claims.harness.study.Study._row", interrupted)
    assert servegym("proserve-mape", "--quick") == 130
    kept = "0 runs of proserve-mape are kept in results/reproduce; the same command continues"
    assert kept in capsys.readouterr().err

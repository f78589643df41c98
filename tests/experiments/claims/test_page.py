"""docs/results.md and the folder beside it are the pages of the claims there are."""

import dataclasses
import datetime
import re
from pathlib import Path

import pytest

from experiments.claims.harness.page import render, render_index, write_pages
from experiments.claims.harness.registry import claims
from experiments.claims.harness.study import Study
from tests.experiments.claims.synthetic import TINY, synthetic_claim

INDEX = Path(__file__).parents[3] / "docs" / "results.md"
PAGES = INDEX.parent / "results"
DATE = datetime.date(2026, 1, 2)


def test_there_is_a_page_for_each_registered_claim_and_the_index_names_them_in_order():
    text = INDEX.read_text("utf-8")
    assert {page.stem for page in PAGES.glob("*.md")} == set(re.findall(r"\[(\S+)\]\(results/", text)) >= set(claims())
    assert re.findall(r"^\| \[(\S+)\]\(results/", text, re.MULTILINE) == list(claims())
    assert text == render_index(PAGES)


@pytest.mark.parametrize("id", list(claims()))
def test_page_states_what_the_claim_states_and_shows_pictures_that_are_there(id):
    text, claim = (PAGES / f"{id}.md").read_text("utf-8"), claims()[id]
    assert (
        claim.prose.hypothesis in text
        and claim.prose.paper in text
        and claim.prose.refuted_by in text
        and claim.prose.reading in text
    )
    assert claim.prose.in_short in text
    for picture in re.findall(r"\]\((\.\./images/[^)]+)\)", text):
        assert (PAGES / picture).is_file()


def test_rendered_page_has_verdict_numbers_settings_date_and_versions(tmp_path):
    outcome = Study(synthetic_claim(), TINY).run(tmp_path, lambda done, cells: None)
    text = render(outcome, DATE)
    assert "on 2026-01-02, with servegym " in text
    assert "| EDF - SJF | > 0 | 0.5 yes |" in text
    assert "| the other way | SJF - EDF | > 0 | -0.5 to -0.5 | 0 of 1 |" in text
    assert "**Verdict**: holds. Checks: 1 hold, 0 undecided, 0 fail. Settings: 1 hold, 0 in part, 0 do not.\n" in text
    assert "**In short**: Every check holds.\n" in text
    assert "## Settings" in text


def test_index_counts_the_checks_of_a_page_and_says_why_in_short(tmp_path):
    outcome = Study(synthetic_claim(), TINY).run(tmp_path, lambda done, cells: None)
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "synthetic.md").write_text(render(outcome, DATE))
    row = "| [synthetic](page/synthetic.md) | Figure 0 | holds | 1 / 0 / 0 | 1 / 0 / 0 | Every check holds. |"
    assert row in render_index(folder).splitlines()


def test_reading_and_reason_are_of_the_full_run_on_its_own_seeds_alone(tmp_path, monkeypatch):
    claim = synthetic_claim()
    prose = dataclasses.replace(claim.prose, reading="It was so.", in_short="Because it was.")
    claim = dataclasses.replace(claim, prose=prose)
    fresh = dataclasses.replace(TINY, seeds=(11, 12, 13))
    monkeypatch.setattr("experiments.claims.harness.outcome.FULL", TINY)
    monkeypatch.setattr("experiments.claims.harness.page.FULL", TINY)
    record, other = (render(Study(claim, size).run(tmp_path, lambda done, cells: None), DATE) for size in (TINY, fresh))
    assert "It was so." in record and "Because it was." in record and "`servegym reproduce synthetic` (" in record
    assert "It was so." not in other and "Because it was." not in other
    assert "`servegym reproduce synthetic --seeds 11` (" in other and "3 seeds (11 to 13)" in other


def test_a_run_writes_its_claims_pages_and_what_they_append_and_keeps_the_others_in_the_index(tmp_path):
    def appendix(rows, folder):
        (folder / "other.csv").write_text(f"{len(rows)}\n")
        return "**More** of it."

    own = dataclasses.replace(synthetic_claim(), id="other", appendix=appendix)
    first, other = (Study(claim, TINY).run(tmp_path, lambda done, cells: None) for claim in (synthetic_claim(), own))
    index, pages = tmp_path / "docs" / "page.md", tmp_path / "docs" / "page"
    assert write_pages([first], index, DATE) == [index, pages / f"{first.claim.id}.md"]
    written = write_pages([other], index, DATE)
    assert written == [index, pages / "other.md", tmp_path / "docs" / "tables" / "other.csv"]
    assert "**More** of it." in (pages / "other.md").read_text("utf-8")
    assert (tmp_path / "docs" / "tables" / "other.csv").read_text() == "6\n"
    for id in (first.claim.id, "other"):
        assert f"| [{id}](page/{id}.md) | " in index.read_text("utf-8")

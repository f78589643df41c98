"""docs/results.md and the folder beside it are the pages of the claims there are."""

import dataclasses
import datetime
import re
from pathlib import Path

import pytest

from servegym.experiments.claims.harness.claim import claims
from servegym.experiments.claims.harness.page import render, render_index, write_pages
from servegym.experiments.claims.harness.study import Study
from tests.claims.synthetic import TINY, synthetic_claim

INDEX = Path(__file__).parents[2] / "docs" / "results.md"
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
    assert claim.hypothesis in text and claim.paper in text and claim.refuted_by in text and claim.reading in text
    for picture in re.findall(r"\]\((\.\./images/[^)]+)\)", text):
        assert (PAGES / picture).is_file()


def test_rendered_page_has_verdict_numbers_settings_date_and_versions(tmp_path):
    outcome = Study(synthetic_claim(), TINY).run(tmp_path, lambda done, cells: None)
    text = render(outcome, DATE)
    assert "on 2026-01-02, with servegym " in text
    assert "| EDF - SJF | > 0 | 0.5 ± 0 yes |" in text
    assert "| the other way | SJF - EDF | > 0 | -0.5 to -0.5 | 0 of 1 |" in text
    assert "**Verdict**: holds (1 / 0 / 0)." in text
    assert re.search(r"^\| azure-conv on a100", text, re.MULTILINE)


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

"""docs/results.md is the page of the claims there are."""

import dataclasses
import datetime
import re
from pathlib import Path

from servegym.experiments.claims.harness.claim import claims
from servegym.experiments.claims.harness.page import render, write_page
from servegym.experiments.claims.harness.study import Study
from tests.claims.synthetic import TINY, synthetic_claim

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
DATE = datetime.date(2026, 1, 2)


def test_page_has_exactly_the_registered_claims():
    assert re.findall(r"^## (\S+-\S+)$", PAGE.read_text("utf-8"), re.MULTILINE) == list(claims())


def test_page_states_what_the_claims_state_and_shows_pictures_that_are_there():
    text = PAGE.read_text("utf-8")
    for claim in claims().values():
        assert claim.hypothesis in text and claim.paper in text and claim.refuted_by in text and claim.reading in text
    for picture in re.findall(r"\]\((images/[^)]+)\)", text):
        assert (PAGE.parent / picture).is_file()


def test_rendered_page_has_verdict_numbers_date_and_versions(tmp_path):
    outcome = Study(synthetic_claim(), TINY).run(tmp_path, lambda done, cells: None)
    text = render([outcome], DATE)
    assert "on 2026-01-02, with\nservegym " in text
    assert "| EDF - SJF | > 0 | 0.5 ± 0 yes |" in text
    assert "| the other way | SJF - EDF | > 0 | -0.5 to -0.5 | 0 of 1 |" in text
    assert "**Verdict**: holds." in text
    assert write_page([outcome], tmp_path / "docs" / "page.md", DATE) == [tmp_path / "docs" / "page.md"]


def test_page_has_settings_of_all_claims_and_what_a_claim_appends(tmp_path):
    def appendix(rows, folder):
        (folder / "other.csv").write_text(f"{len(rows)}\n")
        return "**More** of it."

    own = dataclasses.replace(synthetic_claim(), id="other", families=("semantic",), appendix=appendix)
    outcomes = [Study(claim, TINY).run(tmp_path, lambda done, cells: None) for claim in (synthetic_claim(), own)]
    page = tmp_path / "docs" / "page.md"
    assert write_page(outcomes, page, DATE) == [page, tmp_path / "docs" / "tables" / "other.csv"]
    text = page.read_text("utf-8")
    assert len(re.findall(r"^\| (azure-conv|semantic) on a100", text, re.MULTILINE)) == 2
    assert text.rstrip().endswith("**More** of it.")
    assert (tmp_path / "docs" / "tables" / "other.csv").read_text() == "6\n"

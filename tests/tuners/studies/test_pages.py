"""The pages of tunings in the documentation are of those that ship, as they are now."""

import re
from pathlib import Path

import pytest

from experiments.tuning.page import reading_of
from servegym.tuners.studies.reading import load_tuning

PAGES = sorted((Path(__file__).parents[3] / "docs" / "results").glob("tuning-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_every_study_what_was_asked_and_pictures_that_are_there(page):
    text, config = page.read_text("utf-8"), load_tuning(page.stem.removeprefix("tuning-"))
    assert re.findall(r"^### (\S+)$", text, re.MULTILINE) == list(config.studies)
    assert config.description in text and f"{config.trials} trials a study" in text
    assert reading_of(page.stem) and reading_of(page.stem) in text
    pictures = re.findall(r"\]\((\.\./images/[^)]+)\)", text)
    assert len(pictures) == 2 and all((page.parent / picture).is_file() for picture in pictures)


def test_the_tunings_of_schedulers_have_a_page():
    assert [page.stem for page in PAGES] == ["tuning-proserve-a100", "tuning-proserve-ascend", "tuning-steps-a100"]

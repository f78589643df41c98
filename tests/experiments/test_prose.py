"""The words of studies are read by section; a claim has those it must have and no others."""

import pytest

from experiments.claims.harness import prose
from experiments.prose import WIDTH, sections, wrapped
from servegym.errors import ExperimentError

WORDS = """\
# my-claim

What stands before the first section is for who reads the file.

## Figure

Figure 1

## Paper

One line
and another.

A second paragraph.

## Hypothesis

More than 0.

## Refuted by

Less.
"""


def test_lines_of_a_paragraph_are_joined(tmp_path):
    path = tmp_path / "words.md"
    path.write_text(WORDS)
    assert sections(path) == {
        "Figure": "Figure 1",
        "Paper": "One line and another.\n\nA second paragraph.",
        "Hypothesis": "More than 0.",
        "Refuted by": "Less.",
    }


def test_a_section_that_comes_twice_is_refused(tmp_path):
    path = tmp_path / "words.md"
    path.write_text(WORDS + "## Paper\n\nAgain.\n")
    with pytest.raises(ExperimentError, match=r"words\.md: there are two sections 'Paper'"):
        sections(path)


def test_words_of_a_claim_are_in_the_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "FOLDER", tmp_path)
    (tmp_path / "my_claim.md").write_text(WORDS + "## In short\n\nIt holds.\n")
    found = prose.prose_of("my-claim")
    assert (found.figure, found.refuted_by, found.in_short, found.reading) == ("Figure 1", "Less.", "It holds.", "")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (WORDS.replace("## Refuted by", "## Refuted"), "no section 'Refuted by', an unknown section 'Refuted'"),
        (WORDS + "## Verdict\n\nGood.\n", "an unknown section 'Verdict'"),
    ],
)
def test_sections_that_are_missing_or_unknown_are_named(tmp_path, monkeypatch, words, wrong):
    monkeypatch.setattr(prose, "FOLDER", tmp_path)
    (tmp_path / "my_claim.md").write_text(words)
    with pytest.raises(ExperimentError, match=f"my_claim.md: {wrong}; there should be Figure, Paper"):
        prose.prose_of("my-claim")


def test_paragraphs_and_items_are_wrapped_and_tables_and_code_are_not():
    long = "word " * 40 + "end"
    lines = wrapped(f"{long}\n\n- {long}\n\n12. {long}\n\n| {long} |\n\n    {long}").split("\n")
    assert [line for line in lines if len(line) > WIDTH] == [f"| {long} |", f"    {long}"]
    starts = [line[:5] for line in lines]
    assert starts == ["word ", "word ", "", "- wor", "  wor", "", "12. w", "    w", "", "| wor", "", "    w"]

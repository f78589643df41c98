"""Tables of pages in Markdown: one module draws them all."""

from pathlib import Path

import pytest

from servegym.evaluation.markdown import header, narrow_header, narrow_row, row, table

ROOT = Path(__file__).resolve().parents[2]
WRITING_PAGES = ("experiments", "evaluation", "tuners", "website")


def test_rows_and_headers_are_lines_of_one_table() -> None:
    assert row("a", 1, "") == "| a | 1 |  |"
    assert header("a", "b") == ["| a | b |", "| --- | --- |"]
    assert narrow_row("all", "", "7") == "| all | | 7 |"
    assert narrow_header("", "b") == ["| | b |", "|---|---|"]
    assert narrow_header("a", "b", numbers=(1,)) == ["| a | b |", "|---|--:|"]


def test_numbers_stand_at_the_right() -> None:
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | --: |\n| x | 1 |\n"
    assert table(["a", "b", "c"], [], words=2).splitlines()[1] == "| --- | --- | --: |"


@pytest.mark.parametrize("folder", WRITING_PAGES)
def test_no_other_module_draws_tables(folder: str) -> None:
    drawing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if any(rule in path.read_text(encoding="utf-8") for rule in ('"|---|', "|---|---|", '["---"]', "' | '.join"))
    }
    # The head of the page of a measurement is a text with a table of its own.
    assert drawing <= {"evaluation/markdown.py", "experiments/engines/real_cpu_page.py"}

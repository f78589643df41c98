"""The table of parity counts: what it says of a line, and how it gets into a page."""

from pathlib import Path

import pytest

from experiments.engines.parity_counts import BEGIN, END, FUZZ, cell, page_with, rows_of
from servegym.adapters.vllm.versions import TESTED
from servegym.errors import VllmError

PAGE = Path(__file__).parents[3] / "docs" / "results" / "vllm-parity.md"
COLUMNS = {
    "0.33.0": {"policies": {"steps": 1200, "deviating_steps": 0}, "drafts": {"error": "a block is lost"}},
    "0.9.1": {"policies": {"steps": 1200, "deviating_steps": 200}},
}


def test_a_cell_says_what_became_of_the_rest() -> None:
    counts = {
        "steps": 1041, "deviating_steps": 21, "deviations": {"preempted": 19, "not admitted": 3, "cut": 0},
        "deviating_hits": 2, "fallback_steps": 5,
    }  # fmt: skip
    assert cell(counts) == "1,020 of 1,041; 3 not admitted; 19 preempted; 2 hits; 5 by vLLM"
    assert cell({"steps": 7}) == "7 of 7"


def test_the_fuzz_has_rows_of_its_own() -> None:
    counts = {
        "scenes": 4, "failures": ["seed 3"], "deviations": {"cut": 2}, "failing policy": {},
        "all": {"steps": 1000, "deviating_steps": 10, "fallback_steps": 3},
        "order only": {"steps": 600, "deviating_steps": 9, "fallback_steps": 3},
    }  # fmt: skip
    rows = rows_of({FUZZ: counts})
    assert list(rows.values()) == ["399 of 400; 2 cut", "591 of 600; 3 by vLLM", "0", "1 of 4"]


def test_a_page_gets_a_column_for_each_version_and_keeps_the_rest() -> None:
    page = page_with(f"before\n{BEGIN}\n| old |\n{END}\nafter\n", COLUMNS)
    lines = page.splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    assert lines[2].endswith("| 0.9.1 | 0.33.0 |")
    assert "| policies | 1,000 of 1,200 | 1,200 of 1,200 |" in lines
    assert "| drafts |  | fails: a block is lost |" in lines
    assert page_with(page, COLUMNS) == page
    again = page_with(page, {"0.33.0": {"policies": {"steps": 9}}})  # of one version; the other's column stays
    assert "| policies | 1,000 of 1,200 | 9 of 9 |" in again.splitlines()
    with pytest.raises(VllmError, match="has no"):
        page_with("a page", COLUMNS)


def test_the_page_has_every_tested_version() -> None:
    head = PAGE.read_text("utf-8").partition(BEGIN)[2].strip().splitlines()[0]
    versions = [column.strip() for column in head.strip("|").split("|")[1:]]
    assert [".".join(version.split(".")[:2]) for version in versions] == list(TESTED)

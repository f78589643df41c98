"""Every figure of the papers is that of a claim, or is listed with the reason why there is none."""

import re
from pathlib import Path

import pytest

from experiments.claims.harness.registry import claims

PAGE = Path(__file__).parents[3] / "docs/results/figures-without-claims.md"
# Paper: heading of the page, figures, tables.
PAPERS = {
    "proserve": ("ProServe", 19, 1), "flowprefill": ("FlowPrefill", 17, 2), "polyserve": ("PolyServe", 9, 1),
    "qoserve": ("QoServe", 15, 5), "semantic": ("Semantic scheduling", 5, 2),
}  # fmt: skip


def numbers(text: str, kind: str) -> set[int]:
    """Those of "Figure 2a", "Figures 3 and 4", "Figures 2 to 4", "Tables 1, 2, 3"."""
    found: set[int] = set()
    for those in re.findall(rf"\b{kind}s? (\d+\w?(?:(?:, | and | to )\d+\w?)*)", text):
        several = [int(number) for number in re.findall(r"\d+", those)]
        found |= set(range(several[0], several[1] + 1)) if " to " in those else set(several)
    return found


def listed(heading: str) -> str:
    """The first cells of the rows under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "\n".join(row.split("|")[1] for row in section.splitlines() if row.startswith("|"))


@pytest.mark.parametrize("paper", PAPERS)
def test_no_figure_is_forgotten(paper):
    heading, figures, tables = PAPERS[paper]
    of_claims = "\n".join(claim.prose.figure for id, claim in claims().items() if id.startswith(paper))
    for kind, count in (("Figure", figures), ("Table", tables)):
        assert numbers(of_claims, kind) | numbers(listed(heading), kind) == set(range(1, count + 1)), kind
        # Of a figure in parts one may have a claim, and the other not.
        assert numbers(of_claims, kind) & numbers(listed(heading), kind) <= {15}, kind


def test_numbers_of_a_figure():
    assert numbers("Figures 2 to 4", "Figure") == {2, 3, 4}
    assert numbers("Figures 2c and 2d\nFigure 15b", "Figure") == {2, 15}
    assert numbers("Tables 1, 2, 3", "Table") == {1, 2, 3} and numbers("Tables 1, 2", "Figure") == set()

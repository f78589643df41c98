"""A new page needs no line in mkdocs.yml: the first pattern that it matches takes it."""

from pathlib import Path

import yaml
from website.navigation import filled, paths_of

ROOT = Path(__file__).parents[2]


def test_patterns_take_what_is_not_named() -> None:
    nav = [{"A": ["one.md", "t*.md"]}, {"B": ["deep/*.md", {"C": ["three.md"]}, "*.md"]}]
    pages = ["deep/x.md", "four.md", "one.md", "three.md", "two.md"]
    found = filled(nav, pages, named=set(paths_of(nav)))
    assert found == [{"A": ["one.md", "two.md"]}, {"B": ["deep/x.md", {"C": ["three.md"]}, "four.md"]}]


def test_every_page_of_docs_has_a_place_and_every_name_is_a_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    nav = yaml.safe_load(text)["nav"]
    docs = ROOT / "docs"
    pages = sorted(path.relative_to(docs).as_posix() for kind in ("*.md", "*.ipynb") for path in docs.rglob(kind))
    made = {"index.md", "contributing.md", "changes.md", "reference/index.md"}  # by website/hooks.py
    listed = list(paths_of(filled(nav, pages, named=set(paths_of(nav)))))
    assert set(listed) == set(pages) | made
    assert len(listed) == len(set(listed))

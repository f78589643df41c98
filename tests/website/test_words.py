"""Guides are short, and a how-to begins with what the reader can do."""

import re

import pytest
from website.words import (
    GUIDES,
    HOW_TO,
    LABORATORY,
    MOST_GUIDE_WORDS,
    MOST_HOW_TO_WORDS,
    REFERENCE,
    ROOT,
    kind_of,
    pages,
    words_of,
)

HOW_TOS = [page for page in pages() if kind_of(page) == HOW_TO]
FIRST_LINES = 20  # in which a command or code stands


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.name)
def test_a_how_to_is_short_and_begins_with_a_command(page):
    assert words_of(page) <= MOST_HOW_TO_WORDS, "move rules and tables to a page of the reference (website/words.py)"
    first = "\n".join(page.read_text("utf-8").split("\n")[:FIRST_LINES])
    assert re.search(r"^(?:    \S|```)", first, flags=re.MULTILINE)


def test_guides_together_are_short():
    assert sum(words_of(page) for page in pages() if kind_of(page) in GUIDES) < MOST_GUIDE_WORDS


def test_kinds():
    found = {
        name: kind_of(ROOT / name) for name in ("docs/proxy.md", "docs/proxy_reference.md", "docs/results/h100.md")
    }
    assert list(found.values()) == [HOW_TO, REFERENCE, LABORATORY]

"""The sentences of the style page stand on the pages that it names."""

import re

from website.words import ROOT

QUOTED = re.compile(r"^\| ([^|]+) \| \[[^\]]+\]\((\w+\.md)", flags=re.MULTILINE)


def flat(text: str) -> str:
    return " ".join(text.replace("*", "").split())


def test_the_ten_sentences_are_those_of_the_pages():
    found = QUOTED.findall((ROOT / "docs/style.md").read_text("utf-8"))
    assert len(found) == 10
    for sentence, page in found:
        assert sentence in flat((ROOT / "docs" / page).read_text("utf-8")), page

"""The words of a study: Markdown beside its code, a section for each thing to be said."""

import re
import textwrap
from pathlib import Path

from servegym.errors import ExperimentError

WIDTH = 120  # characters of a line
ITEM = re.compile(r"(?:- |\d+\. )")
UNWRAPPED = ("    ", "|", "#", "<!--")  # code, rows of tables, headings and comments

HEADING = re.compile(r"^## (.+)$", re.M)


def sections(path: Path) -> dict[str, str]:
    """The text under each "## heading" of a Markdown file, by heading, the lines of a paragraph joined by spaces.

    Raises ExperimentError for a heading that comes twice.
    """
    _, *found = HEADING.split(path.read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for heading, text in zip(found[::2], found[1::2], strict=True):
        if heading in texts:
            raise ExperimentError(f"{path}: there are two sections {heading!r}")
        texts[heading] = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    return texts


def wrapped(page: str) -> str:
    """Wrap the paragraphs and the items of lists of a Markdown page, each one line of it, at `WIDTH` characters."""
    return "\n".join(line if line.startswith(UNWRAPPED) else _wrapped(line) for line in page.split("\n"))


def _wrapped(line: str) -> str:
    item = ITEM.match(line)
    indent = " " * len(item[0]) if item else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

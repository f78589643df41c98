"""The words of a study: Markdown beside its code, a section for each thing to be said."""

from __future__ import annotations

import re
from pathlib import Path

from servegym.errors import ExperimentError

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

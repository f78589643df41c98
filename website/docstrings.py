"""Docstrings as the reference shows them: lines that begin with the name of an argument or a field become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMED = re.compile(r"^((?:\w+)(?:, \w+)*): ")


def listed(text: str) -> str:
    """The text with "name: what" at the beginning of a line as an item of a list; lines below it belong to it."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if NAMED.match(line) and not line.endswith("::"):
            if not inside:
                lines.append("")
            inside = True
            lines.append(NAMED.sub(lambda found: f"- **{found[1]}**: ", line))
        else:
            inside = inside and bool(line.strip())
            lines.append(f"    {line.strip()}" if inside else line)
    return "\n".join(lines)


class Lists(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)

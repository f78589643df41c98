"""Lists as Python-Markdown asks for them: GitHub's are read with less indent, and without a blank line before."""

from __future__ import annotations

import re

ITEM = re.compile(r"( *)(?:[-*]|\d+\.) +\S")
FENCE = re.compile(r" *(```|~~~)")
INDENT = 4  # of an item below another


def with_lists(text: str) -> str:
    """Markdown in which nested items have the indent, and lists the blank line before them, that makes them such."""
    lines: list[str] = []
    fenced, depths = False, [0]  # indents of the items that the line is in, as written
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        item = None if fenced else ITEM.match(line)
        if item and (len(item[1]) < 4 or len(depths) > 1):
            indent = len(item[1])
            while len(depths) > 1 and indent < depths[-1]:
                depths.pop()
            if indent > depths[-1] + 1:
                depths.append(indent)
            if lines and indent == 0 and lines[-1].strip() and not in_list(lines):
                lines.append("")
            line = " " * (INDENT * (len(depths) - 1)) + line.lstrip()
        elif line and not line[0].isspace() and not fenced:
            depths = [0]
        lines.append(line)
    return "\n".join(lines) + "\n"


def in_list(lines: list[str]) -> bool:
    """Whether the paragraph that ends here is an item of a list, or goes on one."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
        if not line[0].isspace():
            return False
    return False

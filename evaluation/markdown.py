"""Writes the tables of pages in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def row(*cells: object) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def header(*names: str) -> list[str]:
    """Return the first two lines of a table of words."""
    return [row(*names), row(*("---" for _ in names))]


def narrow_row(*cells: str) -> str:
    """Return a line with no more than a space in an empty cell."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def narrow_header(*names: str, numbers: Collection[int] = ()) -> list[str]:
    """Return the first two lines of a table with narrow rows. numbers: positions of the columns that have them."""
    return [narrow_row(*names), "|" + "".join("--:|" if n in numbers else "---|" for n in range(len(names)))]


def table(columns: Sequence[str], rows: Iterable[Iterable[str]], words: int = 1) -> str:
    """Return a table and a newline. words: how many of the first columns have words; the others have numbers."""
    rule = ["---"] * words + ["--:"] * (len(columns) - words)
    return "\n".join(row(*line) for line in [columns, rule, *rows]) + "\n"

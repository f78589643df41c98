"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def header(*names: str) -> list[str]:
    return [row(*names), row(*("---" for _ in names))]


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column text."""
    return "\n".join(row(*line) for line in [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]) + "\n"

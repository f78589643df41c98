"""Rows of tables in Markdown."""

from __future__ import annotations


def header(*names: str) -> list[str]:
    return [row(*names), row(*("---" for _ in names))]


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"

"""Writes a scene as plain text of at most WIDTH columns, with ANSI colours if asked for."""

from __future__ import annotations

import math
import textwrap

from servegym.envs.rendering import scene as s
from servegym.envs.rendering.words import deadline_place

WIDTH = 100
LETTERS = {s.DECODES: "D", s.PREFILLS: "P", s.MOVING: ">", s.LATE: "<", s.FREE: ".", s.FAILED: "x"}
BOLD, PLAIN = "\033[1m", "\033[0m"
COLOURS = {s.BAD: "\033[31m", s.CHOSEN: "\033[34m", s.FAINT: "\033[2m"}


def scene_text(scene: s.Scene, colour: bool = False) -> str:
    """Write the lines of a scene: figures, meters, tables, legend."""
    lines = head_lines(scene)
    if colour:
        lines[0] = BOLD + lines[0] + PLAIN
    for words, _, _, bar in scene.meters:
        lines.append(truncated(f"{bar_text(bar, 20)} {words}{', ' if bar.words else ''}{bar.words}", WIDTH))
    for table in [table for band in scene.bands for table in band]:
        lines += ["", *table_lines(table, colour)]
    legend = "; ".join(f"{LETTERS[kind]} {words}" for kind, words in scene.legend)
    return "\n".join([*lines, "", *wrapped(legend), *wrapped(scene.remark.replace("▶", ">"))])


def head_lines(scene: s.Scene) -> list[str]:
    when = f"t = {scene.now_s:.3f} s"
    return [
        f"{truncated(scene.name, WIDTH - len(when) - 1):<{WIDTH - len(when) - 1}} {when}",
        truncated(f"{scene.progress}; {scene.decision}", WIDTH),
        *([truncated(f"Last action: {scene.action}", WIDTH)] if scene.action else []),
        *wrapped("; ".join(f"{title} {figure}" for title, figure, _ in scene.figures)),
    ]


def truncated(text: str, width: int) -> str:
    """Cut a text off after `width` columns and mark the cut with "~"."""
    return text[: width - 1] + "~" if len(text) > width else text


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def table_lines(table: s.Table, colour: bool) -> list[str]:
    shown, more = table.cut(table.most)
    titles = s.Row([s.Words(column.title) for column in table.columns])
    lines = [table.title] if table.title else []
    if shown:
        lines.append(row_line(titles, table.columns))
    for k in shown:
        row = table.row(k)
        line = row_line(row, table.columns)
        lines.append(COLOURS[row.tone] + line + PLAIN if colour and row.tone in COLOURS else line)
    return [*lines, f"{more:>{8 + len(more)}}"] if more else lines


def row_line(row: s.Row, columns: list[s.Column]) -> str:
    places = []
    for cell, column in zip(row.cells, columns, strict=True):
        if column.columns:
            text = cell_text(cell, column.columns)
            places.append(text.rjust(column.columns) if column.right else text.ljust(column.columns))
    return f"{'>' if row.marked else ' '}{' '.join(places)}".rstrip()


def cell_text(cell: s.Words | s.Bar | s.Due, width: int) -> str:
    if isinstance(cell, s.Words):
        return cell.text
    return bar_text(cell, width) if isinstance(cell, s.Bar) else due_text(cell.remain_s, width // 2)


def bar_text(bar: s.Bar, width: int) -> str:
    """Write a bar as DDDPP>...; a part with a positive share has at least one letter."""
    width = width if bar.length is None else max(1, round(width * bar.length))
    text, whole = "", 0.0
    for part, kind in bar.parts:
        whole += part
        text += LETTERS[kind] * (math.ceil(min(1.0, whole) * width - 1e-9) - len(text))
    return text.ljust(width, LETTERS[s.FREE])


def due_text(remain_s: float, side: int) -> str:
    """Write a deadline as <<<<|     (missed) or      |=== (time left), with `side` columns on each side."""
    length = max(1, math.ceil(abs(deadline_place(remain_s)) * side))
    left, right = ("<" * length, "") if remain_s <= 0 else ("", "=" * length)
    return f"{left:>{side}}|{right}"

"""Tables that fit the terminal: names stay whole, and columns without room are left out, which a line says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Rows = Sequence[Mapping[str, str]]  # cells by the names of their columns
BEST = " *"  # ends the name of a row in bold
LEAST_NAME = 12  # least characters of a name in a line
BETWEEN = 2  # spaces between columns


def show_tables(
    console: Console, tables: Mapping[str, Rows], optional: Sequence[str] = (), text: Sequence[str] = ()
) -> list[str]:
    """Print tables with the same columns and the same widths, by title; returns the columns shown.

    The first column names the rows, the others are numbers except those in `text`. Columns that are empty in every row
    are not shown. optional: columns to leave out, in this order, in a narrow terminal; a line below names them. If the
    rest has no room either, intervals go to a second line, and at last names to more lines.
    """
    from rich import box
    from rich.table import Table

    rows = [row for some in tables.values() for row in some]
    columns = [name for place, name in enumerate(rows[0]) if place == 0 or any(row[name] for row in rows)]
    leaving, left_out = [name for name in optional if name in columns], list[str]()
    whole_width = table_width(rows, columns)
    while leaving and table_width(rows, columns) > console.width:
        left_out.append(leaving.pop(0))
        columns = [name for name in columns if name not in left_out]
    if table_width(rows, columns) > console.width:
        tables = {title: [stacked(row) for row in some] for title, some in tables.items()}
        rows = [row for some in tables.values() for row in some]
    first = columns[0]
    widths = {name: column_width(rows, name) for name in columns}
    widths[first] = max(LEAST_NAME, widths[first] - max(0, table_width(rows, columns) - console.width))
    for title, some in tables.items():
        table = Table(
            title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for name in columns:
            side: Literal["left", "right"] = "left" if name in (first, *text) else "right"
            head = textwrap.fill(with_unit(name), widths[name], break_long_words=False)
            table.add_column(head, justify=side, width=widths[name], overflow="fold")
        for row in some:
            cells = [folded(row[first], widths[first]), *(row[name] for name in columns[1:])]
            table.add_row(*cells, style="bold" if row[first].endswith(BEST) else None)
        console.print(table)
    if left_out:
        console.print(
            f"Not shown at a width of {console.width}: {'; '.join(left_out)} (COLUMNS={whole_width} has room for all)"
        )
    return columns


def table_width(rows: Rows, columns: Sequence[str]) -> int:
    return sum(column_width(rows, name) for name in columns) + BETWEEN * len(columns) + 1


def column_width(rows: Rows, name: str) -> int:
    """Return the width of the widest cell, or of the heading's longest word."""
    lines = [line for row in rows for line in row[name].split("\n")]
    return max(map(len, lines + with_unit(name).split(" ")))


def with_unit(name: str) -> str:
    """Return the name of a column, with a non-breaking space before its unit."""
    before, comma, unit = name.rpartition(", ")
    return f"{before},\N{NO-BREAK SPACE}{unit}" if comma and " " not in unit else name


def stacked(row: Mapping[str, str]) -> dict[str, str]:
    """Return the row with each interval below its mean."""
    first = next(iter(row))
    return {
        name: cell if name == first else cell.replace(" ± ", "\n± ").replace(" (", "\n(") for name, cell in row.items()
    }


def folded(name: str, width: int) -> str:
    """Break a name into lines of at most `width`, after the marks between its parts where possible."""
    lines = [""]
    for part in re.findall(r"[^\s,:+-]*[\s,:+-]+|[^\s,:+-]+$", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)

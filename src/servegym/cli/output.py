"""Output of commands: tables for people, one JSON document for scripts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import ServegymError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LONGEST_NUMBER = 7  # characters of "-0.1234"; a longer cell, such as a mean ± its interval, wraps at spaces
NOT_A_TERMINAL_WIDTH = 140  # characters; a file or a pipe has no width of its own


def console_for(json_target: str | None) -> Console:
    """Return the console for tables: standard output, or standard error if the JSON document goes there."""
    return _console(stderr=json_target == "-")


def progress_console() -> Console:
    """Return the console for progress and remarks: standard error."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = NOT_A_TERMINAL_WIDTH
    return console


def new_table(*columns: str, title: str | None = None, numbers: bool = True) -> Table:
    """Make an empty table. Its first column is text; the others are numbers, or text if `numbers` is False.

    In a narrow terminal cells wrap, but no number loses a digit.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.show_header = any(columns)
    for index, column in enumerate(columns):
        if index and numbers:
            table.add_column(column, justify="right", min_width=LONGEST_NUMBER)
        else:
            table.add_column(column, overflow="fold")
    return table


def show_notes(provenance: Mapping[str, Any], console: Console) -> None:
    """Print the repairs to a trace and the changes of a recipe, from the provenance of a workload."""
    from servegym.traces.workloads import workload_notes

    for note in workload_notes(provenance):
        console.print(note)


def number(value: float | int | None, digits: int = 3) -> str:
    """Format a number for a table: whole numbers without decimals, others with `digits`, None and nan as a dash."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:z,.{digits}f}"


def plain(value: Any) -> Any:
    """Convert a value to JSON's types: NaN and infinity to None, NumPy numbers to Python's, paths to text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_json(document: Mapping[str, Any], target: str | Path | None) -> None:
    """Write one JSON document to a file, to standard output if `target` is "-", or nowhere if it is None."""
    if target is None:
        return
    text = json.dumps(plain(document), indent=2, allow_nan=False)
    if target == "-":
        print(text)
    else:
        Path(target).write_text(text + "\n", encoding="utf-8")


def check_output_folder(path: Path, option: str = "--out") -> None:
    """Raise ServegymError unless `path` is a folder that can be written to, or that can be made.

    The check runs before the work, and the folder is made after it, so that wrong input leaves nothing behind.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ServegymError(f"{option} {path}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ServegymError(f"{option} {path}: you may not write to {there}")

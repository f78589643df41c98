"""The source of a function, as by `inspect.getsource`, in a tenth of the time.

`inspect` tokenises a function to find its end, which is slow for the hundreds of kernels of a run.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from operator import itemgetter
from types import FunctionType

PACKAGE = f"{__name__.partition('.')[0]}."
LINE = itemgetter(2)  # of an item of `co_lines`: None for code without one


@functools.cache
def source_of(function: FunctionType) -> str | None:
    """Return a function's source; None if it has no file, as when typed at a prompt."""
    if hasattr(function, "kernel_text"):  # generated
        return str(function.kernel_text)
    code = function.__code__
    if not (function.__module__ or "").startswith(PACKAGE):
        linecache.checkcache(code.co_filename)  # the file may have changed since it was read
    lines, first = linecache.getlines(code.co_filename, function.__globals__), code.co_firstlineno - 1
    if first < len(lines) and lines[first].lstrip().startswith(("def ", "@")):
        last = max(filter(None, map(LINE, code.co_lines())))
        if last > first + 1 or lines[first].lstrip().startswith("def "):  # else all it has is a docstring
            return "".join(lines[first : end_of_block(lines, first, last)])
    try:
        return inspect.getsource(function)
    except OSError:
        return None


def end_of_block(lines: list[str], first: int, known: int) -> int:
    """Return the end of the block that begins at line `first`, of which lines before `known` are certain (from 0).

    More deeply indented lines, comments included, and a closing bracket belong to it.
    """
    column, end = indent(lines[first]), known
    for number, line in enumerate(lines[known:], start=known + 1):
        text = line.strip()
        if text and (indent(line) > column or text[0] in ")]}"):
            end = number
        elif text and text[0] != "#":
            break
    return end


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())

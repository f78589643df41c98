"""The text of a function, as `inspect.getsource` gives it, in a tenth of the time.

`inspect` reads every token to find where a function ends, and a run looks at hundreds of kernels.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from types import FunctionType


@functools.cache
def source_of(function: FunctionType) -> str | None:
    """A function's text; None where there is no file to read it from (typed at a prompt)."""
    if hasattr(function, "kernel_text"):  # made, not written
        return str(function.kernel_text)
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have changed since it was read
    lines, first = linecache.getlines(code.co_filename, function.__globals__), code.co_firstlineno - 1
    if first < len(lines) and lines[first].lstrip().startswith(("def ", "@")):
        last = max(line for *_, line in code.co_lines() if line is not None)
        return "".join(lines[first : end_of_block(lines, first, last)])
    try:
        return inspect.getsource(function)
    except OSError:
        return None


def end_of_block(lines: list[str], first: int, known: int) -> int:
    """Where a block ends that begins at line `first` and has the lines before `known` (from 0): what is indented
    further, comments too, and a bracket that closes."""
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

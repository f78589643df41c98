"""Exceptions in a user's compiled functions, which Numba would drop.

A first-class function is called as C code, which cannot return an exception. Numba only prints that it was ignored, by
`sys.unraisablehook`, and the caller goes on. Here the hook passes the exception to the caller of the kernel, which ends
the run. Without an exception it costs nothing.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from servegym.simulator.compilation.kernels import Compiled


class Failure(NamedTuple):
    """An exception, and its file and line if Numba gives them (for a bounds check it does not)."""

    error: str
    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        where = f"{Path(self.file).name}, line {self.line}, in {self.function}: " if self.file else ""
        return where + self.error


_here = threading.local()  # .note: called with each Failure in this thread
_others: Any = sys.__unraisablehook__


def _hook(unraisable: Any) -> None:
    note = getattr(_here, "note", None)
    # For Numba's functions the object is the compiler's context; for destructors and others it is their own.
    if note is None or "numba.core" not in str(unraisable.object):
        _others(unraisable)
        return
    note(failure_of(unraisable.exc_value or unraisable.exc_type(), unraisable.exc_traceback))


def failure_of(error: BaseException, trace: Any) -> Failure:
    """Return the Failure of an exception; if its last frame is `call` below, the line is unknown."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(trace)
    if not frames or frames[-1].filename == __file__:
        return Failure(text)
    return Failure(text, frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)


def call(note: Callable[[Failure], None], function: Callable, *arguments: Any) -> Any:
    """Return function(*arguments), and call `note` with each exception that compiled functions raise meanwhile."""
    global _others
    if sys.unraisablehook is not _hook:
        _others, sys.unraisablehook = sys.unraisablehook, _hook
    before, _here.note = getattr(_here, "note", None), note
    try:
        return function(*arguments)
    finally:
        _here.note = before


def culprit(failure: Failure, functions: Iterable[tuple[str, Compiled]]) -> str:
    """Return which named function raised: the one with the line, else those of its file, else all."""
    functions = list(functions)
    of_file = [(name, f) for name, f in functions if f.written.__code__.co_filename == failure.file]
    for name, function in of_file:
        lines = [line for *_, line in function.written.__code__.co_lines() if line is not None]
        if min(lines) <= failure.line <= max(lines):
            return name
    return " or ".join(dict.fromkeys(name for name, _ in of_file or functions))

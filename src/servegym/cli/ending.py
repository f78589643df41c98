"""Ends the command line: exit statuses, and errors in one line."""

from __future__ import annotations

import io
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import typer

from servegym.errors import ServegymError, without_underscores


class Interrupted(Exception):
    """The user stopped the command; the message says what is kept and how to continue."""


INTERRUPTED = 130  # exit status, as shells have it
WRONG_INPUT = 2
NOW_CALLED = re.compile(r"\w+ is now called ")


def run_app(app: typer.Typer) -> NoReturn:
    """Run a command line and exit: 0, 2 with one line for wrong input, 130 when interrupted."""
    warn_of_earlier_names()
    try:
        refuse_underscores(sys.argv[1:])
        status = app(standalone_mode=False) or 0
        if status == INTERRUPTED:  # typer has swallowed the KeyboardInterrupt
            raise Interrupted("nothing is kept; give the same command again")
    except Interrupted as error:
        end(f"interrupted: {error}", INTERRUPTED)
    except ServegymError as error:
        end(str(error), WRONG_INPUT)
    except OSError as error:
        file = file_of(error)
        end(f"{file}: {error.strerror or error}" if file else str(error), WRONG_INPUT)
    except Exception as error:
        # A usage error of typer, recognised by its method, as the module of its class depends on typer's version.
        if not hasattr(error, "format_message"):
            raise
        status = 0  # without a message typer has shown the help, as no sub-command was named
        if message := error.format_message():
            end(message, WRONG_INPUT)
    sys.exit(status)


def refuse_underscores(words: list[str]) -> None:
    """Raise ServegymError for a number with underscores among the words of a command."""
    for before, word in zip(["", *words], words, strict=False):
        if why := without_underscores(word):
            raise ServegymError((f"{before} " if before.startswith("--") else "") + why)


def warn_of_earlier_names() -> None:
    """Print a line on standard error, once for each earlier name of a parameter that the user gives, with today's."""
    show = warnings.showwarning

    def show_in_a_line(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if NOW_CALLED.match(str(message)):
            print(f"servegym: {message}", file=sys.stderr)
        else:
            show(message, category, *rest)

    warnings.filterwarnings("once", NOW_CALLED.pattern, DeprecationWarning)
    warnings.showwarning = show_in_a_line  # type: ignore[assignment]


def end(message: str, status: int) -> NoReturn:
    """Print the reason in one line on standard error and exit with the status."""
    print("servegym:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def file_of(error: OSError) -> str:
    """Find the file that an error is about, as far as it can be determined: the operating system names none for a full
    disk."""
    if error.filename:
        return str(error.filename)
    frames = [frame.f_locals.values() for frame, _ in traceback.walk_tb(error.__traceback__)]
    for kind in (io.IOBase, Path):  # an open file, else the path that the innermost function had
        for values in reversed(frames):
            for value in values:
                name = getattr(value, "name", None) if isinstance(value, io.IOBase) else value
                if isinstance(value, kind) and isinstance(name, str | Path):
                    return str(name)
    return ""

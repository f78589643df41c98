"""Progress of long work on standard error, and the message on Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from servegym.cli.ending import Interrupted
from servegym.cli.output import progress_console
from servegym.errors import ExperimentError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from servegym.evaluation.running import Progress

T = TypeVar("T")
LINE_EVERY_S = 30.0


@contextlib.contextmanager
def kept_work(what: str, count: int, path: Path, fresh: bool) -> Iterator[Progress]:
    """Show a progress bar for work that is kept in a file or folder as it is done; Ctrl-C says how to continue.

    what: what is counted, such as "runs". fresh: the command was given --fresh.
    """
    with bar_of(what) as (done, progress):
        try:
            yield progress
        except KeyboardInterrupt:
            kept = f"{done[0]} of {count} {what} are kept in {path}"
            raise Interrupted(f"{kept}; the same command{' without --fresh' * fresh} continues from there") from None


def bounds_or_why(find: Callable[[Progress], T], kept: str) -> tuple[T | None, str | None]:
    """Return the result of `find`, with progress; or None, and the reason why there is none.

    kept: what Ctrl-C says is kept; {} stands for the number of bounds.
    """
    with bar_of("bounds") as (done, progress):
        try:
            return find(progress), None
        except ExperimentError as error:
            return None, str(error)
        except KeyboardInterrupt:
            raise Interrupted(f"{kept.format(done[0])}; the same command continues from there") from None


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show in a terminal, on standard error, what is being done, where no share of it can be shown."""
    console = progress_console()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


@contextlib.contextmanager
def bar_of(what: str) -> Iterator[tuple[list[int], Progress]]:
    """Show one bar, as `bars` does. Yields a list with the number done, and a function to call with the number done and
    the number in all."""
    done = [0]

    def progress(now: int, in_all: int) -> None:
        done[0] = now
        show(what, now, in_all)

    with bars() as show:
        yield done, progress


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress bars on standard error; without a terminal, lines for a log, every LINE_EVERY_S seconds at most.

    Yields a function to call with the title of a bar, the number done and the number in all. Nothing is shown before
    its first call, so that wrong input is an error without a bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    made = Bar(*columns, console=progress_console())
    begun: dict[str, tuple[TaskID, Callable[[str], None]]] = {}

    def show(title: str, done: int, in_all: int) -> None:
        made.start()  # later calls do nothing
        if title not in begun:
            begun[title] = made.add_task(title, total=in_all), lines_now_and_then(made.console)
        task, show_line = begun[title]
        made.update(task, completed=done, total=in_all)
        show_line(f"{title}: {done} of {in_all}")

    with stopped(made):
        yield show


@contextlib.contextmanager
def stopped(bar: Bar) -> Iterator[None]:
    """Stop a progress bar at the end, if it was started."""
    try:
        yield
    finally:
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def waiting(console: Console, what: str) -> Iterator[Callable[[], None]]:
    """Show on a terminal that something is prepared, until the end or until the function that it yields is called."""
    status = console.status(what)
    if console.is_terminal:
        status.start()
    try:
        yield status.stop  # later calls do nothing
    finally:
        status.stop()


def lines_now_and_then(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line with the time so far, every LINE_EVERY_S seconds at most."""
    begun_s = last_s = time.monotonic()

    def show_line(text: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if not console.is_terminal and now_s - last_s >= LINE_EVERY_S:
            last_s = now_s
            console.print(f"{text} in {now_s - begun_s:.0f} s")

    return show_line

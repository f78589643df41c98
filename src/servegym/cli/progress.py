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

    from servegym.evaluation.running import Progress

T = TypeVar("T")
LINE_EVERY_S = 30.0


@contextlib.contextmanager
def kept_work(what: str, count: int, path: Path, fresh: bool) -> Iterator[Progress]:
    """A progress bar of work that is kept in a file or folder as it is done; Ctrl-C says how to go on.

    what: "runs", say. fresh: the command was given --fresh.
    """
    with bar_of(what) as (done, progress):
        try:
            yield progress
        except KeyboardInterrupt:
            kept = f"{done[0]} of {count} {what} are kept in {path}"
            raise Interrupted(f"{kept}; the same command{' without --fresh' * fresh} goes on from there") from None


def bounds_or_why(find: Callable[[Progress], T], kept: str) -> tuple[T | None, str | None]:
    """What `find` gives, with progress; or None, and why there is none.

    kept: what there is after Ctrl-C; {} stands for how many bounds.
    """
    with bar_of("bounds") as (done, progress):
        try:
            return find(progress), None
        except ExperimentError as error:
            return None, str(error)
        except KeyboardInterrupt:
            raise Interrupted(f"{kept.format(done[0])}; the same command goes on from there") from None


@contextlib.contextmanager
def bar_of(what: str) -> Iterator[tuple[list[int], Progress]]:
    """A progress bar on standard error, `lines_of` without a terminal: how many are done, and what to call with that
    and how many there are."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    done = [0]
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=progress_console(),
    )
    line = lines_of(what, bar.console)
    task = bar.add_task(what, total=None)

    def progress(now: int, in_all: int) -> None:
        done[0] = now
        bar.start()  # start only once the input is known to be valid; later calls do nothing
        bar.update(task, completed=now, total=in_all)
        line(now, in_all)

    with stopped(bar):
        yield done, progress


@contextlib.contextmanager
def stopped(bar: Bar) -> Iterator[None]:
    """Stop a progress bar in the end, if it was started."""
    try:
        yield
    finally:
        if bar.live.is_started:
            bar.stop()


def lines_of(what: str, console: Console) -> Progress:
    """Progress for a log, where there is no terminal: now and then a line of how many are done."""
    say = said_now_and_then(console)
    return lambda now, in_all: say(f"{what}: {now} of {in_all}")


def said_now_and_then(console: Console) -> Callable[[str], None]:
    """What prints a line to a log, where there is no terminal: every 30 s (LINE_EVERY_S) at most."""
    begun_s = last_s = time.monotonic()

    def say(text: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if not console.is_terminal and now_s - last_s >= LINE_EVERY_S:
            last_s = now_s
            console.print(f"{text} in {now_s - begun_s:.0f} s")

    return say

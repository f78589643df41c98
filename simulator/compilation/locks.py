"""File locks, by which one of several processes compiles and the others wait; and pausing garbage collection."""

import contextlib
import fcntl
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

QUIET_S = 2.0  # shorter waits are not reported


@contextlib.contextmanager
def held(file: IO[Any] | int, waiting: str = "") -> Iterator[None]:
    """Lock an open file or a descriptor; a killed process loses the lock. Raises OSError if locks are not supported.

    waiting: printed on standard error once the wait takes longer than `QUIET_S`; "": nothing is printed.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        timer = threading.Timer(QUIET_S, print, (waiting,), {"file": sys.stderr, "flush": True})
        if waiting:
            timer.start()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            timer.cancel()
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # close() would not do if a forked child has the file open


@contextlib.contextmanager
def alone_in(directory: Path, waiting: str = "") -> Iterator[None]:
    """Make a folder and lock it. If it cannot be made or locked, go on without a lock.

    waiting: as for `held`.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            opened = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, opened)
            stack.enter_context(held(opened, waiting))
        yield


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while kernels are compiled or modules imported: it takes a sixth of the time, and finds
    little, as nearly all objects live until the end.

    Afterwards these objects count as old: the next collections of young ones do not go through them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # else the caller's frozen objects would count as old too
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()

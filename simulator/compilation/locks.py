"""Locks of the operating system's: of processes that come together one goes on, the others wait until it is done.

And what a process that compiles does without.
"""

import contextlib
import fcntl
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

QUIET_S = 2.0  # of a wait that nothing is said of


@contextlib.contextmanager
def held(file: IO[Any] | int, waiting: str = "") -> Iterator[None]:
    """Lock an open file or a descriptor. A process that is killed loses the lock. Raises OSError without locks.

    waiting: said on standard error once the wait takes longer than `QUIET_S`; "": nothing is said.
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
        fcntl.flock(file, fcntl.LOCK_UN)  # said, not left to close(): a forked child may have the file open too


@contextlib.contextmanager
def alone_in(directory: Path, waiting: str = "") -> Iterator[None]:
    """The folder is made; where it cannot be, or its file system has no locks, there is no waiting.

    waiting: of `held`.
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
    """Turn garbage collection off while kernels are compiled: nearly all that Numba makes is needed until it is done,
    and to look takes a seventh of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

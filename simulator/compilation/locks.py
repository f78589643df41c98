"""Locks of the operating system's: of processes that come together one goes on, the others wait until it is done."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def held(file: IO[Any] | int) -> Iterator[None]:
    """Lock an open file or a descriptor. A process that is killed loses the lock. Raises OSError without locks."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # said, not left to close(): a forked child may have the file open too


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """The folder is made; where it cannot be, or its file system has no locks, there is no waiting."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            opened = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, opened)
            stack.enter_context(held(opened))
        yield

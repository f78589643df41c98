"""Of processes that come to a folder together one goes in; the others wait until it is done."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """The folder is made; where it cannot be, or its file system has no locks, nobody waits."""
    opened = None
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        opened = os.open(directory, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if opened is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_UN)  # said, not left to close(): a forked child may have it open too
            os.close(opened)

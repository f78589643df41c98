"""Tells which workers are alive: each locks a file, and the operating system releases the lock when the worker dies.

Unlike a process number, the lock is valid in containers that share the folder, and on other machines if the file system
has shared locks (NFS 4); and process numbers are used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from servegym.errors import StorageError


class Presence:
    """The workers that share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def enter(self) -> Iterator[str]:
        """Be present as a worker inside the with block; yields its name, HOST-PROCESS-RANDOM.

        Raises StorageError if the folder cannot be written, or its file system has no locks.
        """
        worker = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / worker).open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise StorageError(
                f"{self.folder}: {error.strerror}; workers need a folder they can write, with file locks"
            ) from None
        with file:
            try:
                yield worker
            except StorageError:
                raise  # its trial may still be RUNNING in the study: the unlocked file tells that the worker is gone
            except BaseException:
                self.forget(worker)
                raise
            self.forget(worker)

    def alive(self, worker: str) -> bool | None:
        """Return whether a worker is alive; None if its file is not in this folder."""
        try:
            with (self.folder / worker).open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except OSError:  # locked (EWOULDBLOCK), or of another user
            return True
        return False

    def forget(self, worker: str) -> None:
        """Remove the file of a worker that is gone."""
        with contextlib.suppress(OSError):
            (self.folder / worker).unlink(missing_ok=True)

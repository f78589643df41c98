"""Studies in a file: Optuna's journal, made safe against killed writers.

The journal has a line of JSON for each change. A killed writer may leave an incomplete last line, which is dropped
before the next line is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from servegym.errors import StorageError
from servegym.simulator.compilation.locks import held
from servegym.tuners.search.presence import Presence

LINE_START = b'{"op_code":'


class KernelLock(JournalFileOpenLock):
    """Excludes other writers of the journal, and drops an incomplete last line before writing.

    Optuna's own lock is a file, which stays when its holder is killed, and others wait 30 s. This one is the operating
    system's, which releases it at once.
    """

    def __init__(self, journal: Path, lock: Path) -> None:
        super().__init__(str(journal))
        self._journal = journal
        self._path = lock
        self._held: BinaryIO | None = None

    def acquire(self) -> bool:
        self._held = self._path.open("ab")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        try:
            drop_torn_line(self._journal)
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        assert self._held is not None
        fcntl.flock(self._held, fcntl.LOCK_UN)  # close() would not unlock while a forked child has it open
        self._held.close()


class Journal(JournalFileBackend):
    """Optuna's journal file; its errors become StorageErrors."""

    def __init__(self, path: Path, lock: KernelLock) -> None:
        super().__init__(str(path), lock_obj=lock)
        self._path = path

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from None
        except ValueError:
            check_journal(self._path)
            raise

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path}: {error.strerror}; its contents are kept, and the same command continues"
            ) from None


class SharedJournal(JournalStorage):
    """A journal that several workers share.

    folder: has the files `study.journal` and, for locks, `study.journal.locks`. grace_s: time after which a running
    trial counts as dead if nothing is known of its worker, which is on another machine with a file system without
    shared locks.
    """

    def __init__(self, folder: Path, grace_s: float) -> None:
        self.path = folder / "study.journal"
        self.name = str(self.path)
        self.grace_s = grace_s
        self.beats_every_s: float | None = None  # a journal has no heartbeats, as file locks show which workers live
        locks = folder / "study.journal.locks"
        self.presence = Presence(locks)
        self._claims = locks / "claims"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            lock = KernelLock(self.path, locks / "writers")
            self.path.touch()
            lock.acquire()
            lock.release()
            check_journal(self.path)
        except OSError as error:
            raise StorageError(f"cannot open {self.path}: {error.strerror}") from None
        try:
            super().__init__(Journal(self.path, lock))
        except StorageError:
            raise
        except (AssertionError, KeyError, TypeError, ValueError):
            raise StorageError(f"{self.path} is damaged: its lines are not those of a study; {START_OVER}") from None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Admit one worker at a time among all that share the journal."""
        with self._claims.open("ab") as file, held(file):
            yield

    def beat(self, trial_id: int) -> None:
        """Do nothing, as file locks show which workers live (`presence`)."""

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Do nothing, as calls never wait for a file."""
        yield


START_OVER = "name another folder, or remove it to start over"


def drop_torn_line(journal: Path) -> None:
    """Cut off a last line without a line feed. Raises StorageError if it is not the start of a journal's line."""
    with journal.open("r+b") as file:
        end = file.seek(0, 2)
        torn = b""
        while b"\n" not in torn and len(torn) < end:  # ever larger pieces of its end; one byte, for a whole journal
            file.seek(-min(end, max(1, 1024 * len(torn))), 2)
            torn = file.read()
        torn = torn[torn.rfind(b"\n") + 1 :]
        if not LINE_START.startswith(torn[: len(LINE_START)]):
            raise StorageError(f"{journal} is damaged at its end, or is no journal; {START_OVER}")
        if torn:
            file.truncate(end - len(torn))


def check_journal(journal: Path) -> None:
    """Raise StorageError for a journal with a malformed line, naming it."""
    with journal.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # torn, or being written
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if not (isinstance(entry, dict) and {"op_code", "worker_id"} <= entry.keys()):
                first = f"is damaged at line {number}; `head -n {number - 1}` of it is what was written before"
                raise StorageError(f"{journal} {'is no journal of a study' if number == 1 else first}; {START_OVER}")

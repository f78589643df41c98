"""Studies in a file: Optuna's journal, made safe against killed writers.

The journal has a line of JSON for each change. A killed writer may leave an incomplete last line, which is dropped
before the next line is written; Optuna would append to it and could not read the file from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from servegym.errors import StorageError
from servegym.simulator.compilation.locks import alone_in, held
from servegym.tuners.search.presence import Presence

LINE_START = b'{"op_code":'


class Journal(JournalFileBackend):
    """Optuna's journal file; its errors become StorageErrors."""

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except OSError as error:
            raise StorageError(f"cannot read {self._file_path}: {error.strerror}") from None
        except ValueError:
            check_journal(Path(self._file_path))
            raise

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines. The operating system unlocks the file when a writer is killed; Optuna's lock would be left
        behind, and others wait for it for 30 s."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            with open(self._file_path, "r+b") as file, held(file):
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
                        file.seek(0, os.SEEK_END)
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"cannot write {self._file_path}: {error.strerror}; its contents are kept, and the same command "
                "continues"
            ) from None


class SharedJournal(JournalStorage):
    """A journal that several workers share.

    folder: has the file `study.journal` and, for locks, the folder `study.journal.locks`.
    """

    heartbeats_tell = False  # there are none: locks tell which workers are dead

    def __init__(self, folder: Path) -> None:
        path, self._locks = folder / "study.journal", folder / "study.journal.locks"
        self.name = str(path)
        self.presence = Presence(self._locks)
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            path.touch()
            check_journal(path)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from None
        try:
            super().__init__(Journal(self.name))
        except (AssertionError, KeyError, TypeError, ValueError):
            raise StorageError(f"{path} is damaged: its lines are not those of a study; {START_OVER}") from None

    def exclusive(self) -> AbstractContextManager[None]:
        """Admit one worker at a time among all that share the journal."""
        return alone_in(self._locks)

    def is_dead(self, worker: str) -> bool:
        """Return whether a worker is dead: all that share the journal lock a file in the same folder."""
        return not self.presence.alive(worker)


START_OVER = "name another folder, or remove it to start over"


def check_journal(journal: Path) -> None:
    """Raise StorageError for a journal with a malformed line, naming it."""
    with journal.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") and LINE_START.startswith(line[: len(LINE_START)]):
                return  # incomplete, or being written
            entry = None
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
            if not (isinstance(entry, dict) and {"op_code", "worker_id"} <= entry.keys()):
                first = f"is damaged at line {number}; `head -n {number - 1}` of it is what was written before"
                raise StorageError(f"{journal} {'is no journal of a study' if number == 1 else first}; {START_OVER}")

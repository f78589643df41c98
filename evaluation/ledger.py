"""A ledger: rows of a study in a file, each written as soon as it is known, so that a stopped study can go on.

The file is JSON lines. The first line says which study it is; every other line is a row. A line counts once its
line feed is there: of a process that was killed while writing, the last line may be torn, and is dropped.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from servegym.errors import ExperimentError
from servegym.evaluation.running import Runner

Item = TypeVar("Item")
Key = TypeVar("Key")
Row = dict[str, Any]
HEADER_START = b'{"study": '


class Ledger:
    """The rows of one study, for one process at a time.

        with Ledger(path, identity, check) as ledger:
            ledger.rows          # of earlier runs
            ledger.append(row)

    identity: everything that the rows depend on, as JSON. check: returns what is wrong with a row, or None.
    fresh: discard the rows of the file. Raises ExperimentError for a file of another study, one that is damaged or
    one that another process writes to; OSError for one that cannot be opened.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], check: Callable[[Row], str | None], fresh: bool = False
    ) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))
        self.check = check
        self.fresh = fresh
        self.rows: list[Row] = []

    def __enter__(self) -> Ledger:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self.path.open("a+b")
        try:
            self._lock()
            if self.fresh:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Write a row; when this returns the row survives the end of this process."""
        self._write(row)
        self.rows.append(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExperimentError(f"{self.path} is being written by another process; wait for it") from None

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        if lines:
            self._check_identity(self._parsed(1, lines[0]).get("study"))
        elif not HEADER_START.startswith(content[: len(HEADER_START)]):
            raise self._not_a_record()
        self._file.truncate(end)  # not before it is known that the file is a ledger
        if not lines:
            self._write({"study": self.identity})
        for number, line in enumerate(lines[1:], start=2):
            row = self._parsed(number, line)
            problem = self.check(row)
            if problem is not None:
                raise ExperimentError(f"{self.path}, line {number}: {problem}; --fresh starts over")
            self.rows.append(row)

    def _parsed(self, number: int, line: bytes) -> Row:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ExperimentError(f"{self.path}, line {number} is damaged; --fresh starts over")
        return row

    def _not_a_record(self) -> ExperimentError:
        return ExperimentError(f"{self.path} is not a record of results; name another folder")

    def _check_identity(self, found: Any) -> None:
        if not isinstance(found, dict):
            raise self._not_a_record()
        if found == self.identity:
            return
        raise ExperimentError(
            f"{self.path} holds another comparison: {differences(found, self.identity)}; "
            "name another folder with --out, or start over with --fresh"
        )


def kept_rows(
    ledger: Ledger,
    items: Mapping[Key, Item],
    key_of: Callable[[Row], Key],
    run: Callable[[Item], Row],
    progress: Callable[[int, int], None],
    runner: Runner,
    prepare: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Run the items without a row in the ledger, keep each row as it comes, and return the rows of all items in order.

    items: by key; key_of: the key of a row. The ledger may have rows of other items.
    progress: called with (rows there are, items) at the start and after each run. prepare: called before the first run.
    An interrupt leaves the rows.
    """
    with ledger:
        rows = {key: row for row in ledger.rows if (key := key_of(row)) in items}
        todo = [item for key, item in items.items() if key not in rows]
        progress(len(rows), len(items))
        if todo:
            prepare()
        for _, row in runner.run(run, todo):
            ledger.append(row)
            rows[key_of(row)] = row
            progress(len(rows), len(items))
    return [rows[key] for key in items]


def differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Say which keys have other values, and show the values that are short.

    What is only there or only asked for within a value, such as the code of a scheduler that was not compared, follows
    from another difference, and is left out if there is one.
    """
    parts, follow = list[str](), list[str]()
    for key in {**asked, **found}:
        pair = f"{key} {json.dumps(found.get(key))} there, {json.dumps(asked.get(key))} asked for"
        if found.get(key) != asked.get(key):
            words = pair if len(pair) <= 100 else f"other {key}"
            (follow if agree(found.get(key), asked.get(key)) else parts).append(words)
    return ", ".join(parts or follow)


def agree(found: Any, asked: Any) -> bool:
    """Whether two mappings have equal values of the keys that both have."""
    if not (isinstance(found, Mapping) and isinstance(asked, Mapping)):
        return False
    return all(found[key] == asked[key] for key in found if key in asked)

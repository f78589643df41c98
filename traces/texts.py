"""Text files, gzipped or plain."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from servegym.errors import WorkloadError

SNIFFED_BYTES = 4096
LONGEST_LINE = 1 << 26  # characters: a longer line is a broken file, or a hostile archive


def open_text(path: Path) -> TextIO:
    """Open a text file, unpacked if it is gzipped; a binary file is refused."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as stream:
        if b"\0" in stream.read(SNIFFED_BYTES):
            raise WorkloadError(f"{path.name} holds binary data, not text; is its ending right?")
    return opener(path, "rt", encoding="utf-8-sig", newline="")


class Lines:
    """The lines of a text file, none of them longer than LONGEST_LINE, so that no file fills the memory.

    Raises WorkloadError, naming the line, where one is longer.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._lines = 0  # number of lines before the current one
        self._length = 0  # characters read of the current one

    def __iter__(self) -> Iterator[str]:
        while line := self._stream.readline(LONGEST_LINE + 1):
            self._check(len(line))
            self._lines += 1
            yield line

    def read(self, size: int = -1) -> str:
        """Return the next `size` characters, as of any text file."""
        text = self._stream.read(size)
        end = max(text.rfind("\n"), text.rfind("\r"))
        self._length = len(text) - end - 1 if end >= 0 else self._length + len(text)
        self._lines += text.count("\n")
        self._check(self._length)
        return text

    def _check(self, length: int) -> None:
        if length > LONGEST_LINE:
            raise WorkloadError(f"{self._name}, line {self._lines + 1} is longer than {LONGEST_LINE} characters")

"""Rows of JSON files, one at a time: an object a line, or the objects of one list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from servegym.errors import WorkloadError
from servegym.traces.texts import LONGEST_LINE, Lines, open_text

READ_CHARACTERS = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a file of JSON lines, without empty lines. Raises WorkloadError, which names the line."""
    with open_text(path) as stream:
        for number, line in enumerate(Lines(stream, path.name), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise WorkloadError(f"{path.name}, line {number} is not JSON: {_one_line(error)}") from None
            if not isinstance(row, dict):
                raise WorkloadError(f'{path.name}, line {number} is not a JSON object such as {{"prompt_tokens": 8}}')
            yield row


def items(path: Path) -> Iterator[dict[str, Any]]:
    """Read, in pieces, the objects of a JSON list, or the single object of the file.

    Raises WorkloadError, naming the item.
    """
    with open_text(path) as stream:
        text = _Text(stream)
        if text.next() == "{":
            yield _only(text, path.name)
            return
        if text.next() != "[":
            raise WorkloadError(f"{path.name} is neither a JSON list of objects nor an object")
        text.at += 1
        number = 0
        while text.next() != "]":
            if number and text.next() == ",":
                text.at += 1
            elif number:
                raise WorkloadError(f"{path.name}, item {number}: neither a comma nor the end of the list follows it")
            number += 1
            try:
                row = text.value()
            except (json.JSONDecodeError, RecursionError) as error:
                raise WorkloadError(f"{path.name}, item {number} is not JSON: {_one_line(error)}") from None
            if not isinstance(row, dict):
                raise WorkloadError(f"{path.name}, item {number} is not a JSON object")
            yield row
        text.at += 1
        if text.next():
            raise WorkloadError(f"{path.name} has something after the end of its list")


def _only(text: _Text, name: str) -> dict[str, Any]:
    """Read a file that is a single object. Raises WorkloadError."""
    try:
        row: dict[str, Any] = text.value()
    except (json.JSONDecodeError, RecursionError) as error:
        raise WorkloadError(f"{name} is not JSON: {_one_line(error)}") from None
    if text.next():
        raise WorkloadError(f"{name} has something after its object; if it has an object a line, name it .jsonl")
    return row


class _Text:
    """A buffer of a text file, read up to `at`, which grows as needed."""

    def __init__(self, stream: TextIO) -> None:
        self.at = 0
        self._stream = stream
        self._text = ""
        self._decoder = json.JSONDecoder()

    def next(self) -> str:
        """Move `at` to the next character that is not a space, and return it; "" at the end of the file."""
        self.at = _after_space(self._text, self.at)
        while self.at == len(self._text) and self._grow():
            self.at = _after_space(self._text, self.at)
        return self._text[self.at : self.at + 1]

    def value(self) -> Any:
        """Parse the JSON value at `at` and move past it. Raises JSONDecodeError, RecursionError."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self.at)
            except json.JSONDecodeError:
                if len(self._text) - self.at > LONGEST_LINE or not self._grow():
                    raise
            else:
                if end < len(self._text) or not self._grow():  # a number at the buffer's end may have more digits
                    self.at = end
                    return value

    def _grow(self) -> bool:
        """Read more, at least as much as the buffer holds, so that long items are not parsed in many small steps."""
        rest = self._text[self.at :]
        more = self._stream.read(max(READ_CHARACTERS, len(rest)))
        self._text, self.at = rest + more, 0
        return bool(more)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

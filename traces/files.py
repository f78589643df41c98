"""Files of rows (CSV, JSON lines, Parquet) read a stretch at a time, only the columns that are asked for."""

from __future__ import annotations

import csv
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from servegym.simulator.errors import WorkloadError
from servegym.traces.cells import Chunk

CHUNK_ROWS = 262_144  # rows held as text or objects at a time
SNIFFED_BYTES = 4096

RowFile = Callable[[Path, Collection[str] | None], Iterator[Chunk]]


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file. Raises WorkloadError for a file that cannot be read."""
    kind = _kind(path)
    with _readable(path):
        names = _NAMES[kind](path)
    if not names:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise WorkloadError(
            f"{path.name} has {', '.join(repeated)} more than once; a column's name is used once"
        )
    return names


def chunks(path: Path, columns: Collection[str]) -> Iterator[Chunk]:
    """The rows of a file in order, at most CHUNK_ROWS at a time, with these columns.

    Raises WorkloadError for a file that is damaged, naming the row where that is known.
    """
    with _readable(path):
        yield from _CHUNKS[_kind(path)](path, columns)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _kind(path: Path) -> str:
    """Which of the formats a file's name says it has."""
    if not path.exists():
        raise WorkloadError(f"there is no file {path}")
    if not path.is_file():
        raise WorkloadError(f"{path} is not a file")
    if path.stat().st_size == 0:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request")
    packed = path.suffix.lower() == ".gz"
    kind = _SUFFIXES.get((path.with_suffix("") if packed else path).suffix.lower())
    if kind is None or (packed and kind == "parquet"):
        raise WorkloadError(f"{path.name}: a trace ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet")
    return kind


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns every way a damaged file fails in the libraries that read it into a WorkloadError."""
    import pandas as pd
    import pyarrow as pa

    try:
        yield
    except WorkloadError:
        raise
    except pd.errors.EmptyDataError:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path.name} is not text in UTF-8: {error.reason}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise WorkloadError(f"{path.name} is damaged or cut short: {_one_line(error)}") from None
    except (pd.errors.ParserError, pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())[:200]


def _open_text(path: Path) -> TextIO:
    """A text file, unpacked where it is gzipped; refused where it is binary."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as stream:
        if b"\0" in stream.read(SNIFFED_BYTES):
            raise WorkloadError(f"{path.name} holds binary data, not text; is its ending right?")
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def _csv_names(path: Path) -> list[str]:
    with _open_text(path) as stream:
        rows = csv.reader(stream)
        try:
            names = [name.strip() for name in next(rows, [])]
            first = next(rows, [])
        except csv.Error as error:
            raise WorkloadError(f"{path.name}: its first lines are not CSV: {error}") from None
    if names and len(first) > len(names):  # of the first row pandas would cut the rest without an error
        raise WorkloadError(f"{path.name}: expected {len(names)} fields in line 2, saw {len(first)}")
    return names


def _csv_chunks(path: Path, columns: Collection[str]) -> Iterator[Chunk]:
    import pandas as pd

    row = 1
    with (
        _open_text(path) as stream,
        # All columns, though few are kept: with `usecols` pandas says nothing of a row with too many cells.
        pd.read_csv(
            stream,
            names=_csv_names(path),
            header=0,
            index_col=False,
            chunksize=CHUNK_ROWS,
            skipinitialspace=True,
            low_memory=False,
        ) as frames,
    ):
        for frame in frames:
            yield Chunk(path.name, row, frame[list(columns)])
            row += len(frame)


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise WorkloadError(f"{path.name}, line {number} is not JSON: {_one_line(error)}") from None
            if not isinstance(row, dict):
                raise WorkloadError(
                    f'{path.name}, line {number} is not a JSON object such as {{"prompt_tokens": 8}}'
                )
            yield row


def _jsonl_names(path: Path) -> list[str]:
    """Keys of all lines: what only a later line has is a column too, empty on the others."""
    names: dict[str, None] = {}
    for row in _jsonl_rows(path):
        names.update(dict.fromkeys(row))
    return list(names)


def _jsonl_chunks(path: Path, columns: Collection[str]) -> Iterator[Chunk]:
    import pandas as pd

    rows = _jsonl_rows(path)
    first_row = 1
    while batch := list(itertools.islice(rows, CHUNK_ROWS // 4)):
        frame = pd.DataFrame({name: [row.get(name) for row in batch] for name in columns}, dtype=object)
        yield Chunk(path.name, first_row, frame)
        first_row += len(batch)


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return list(pq.read_schema(path).names)


def _parquet_chunks(path: Path, columns: Collection[str]) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    row = 1
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(CHUNK_ROWS, columns=list(columns)):
            yield Chunk(path.name, row, batch.to_pandas())
            row += batch.num_rows


_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_NAMES = {"csv": _csv_names, "jsonl": _jsonl_names, "parquet": _parquet_names}
_CHUNKS = {"csv": _csv_chunks, "jsonl": _jsonl_chunks, "parquet": _parquet_chunks}

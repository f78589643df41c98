"""Files of rows (CSV, JSON, Parquet), read in chunks and only in the columns asked for."""

from __future__ import annotations

import collections
import csv
import gzip
import hashlib
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servegym.errors import WorkloadError
from servegym.traces import jsonrows
from servegym.traces.cells import Chunk
from servegym.traces.texts import Lines, open_text

CHUNK_ROWS = 262_144  # rows held as text or objects at a time

RowFile = Callable[[Path, Collection[str], int], Iterator[Chunk]]


def column_names(path: Path) -> list[str]:
    """The names of the columns of a file. Raises WorkloadError for a file that cannot be read."""
    kind = _kind(path)
    with _readable(path):
        names = _NAMES[kind](path)
    if not names:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request")
    repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if repeated:
        raise WorkloadError(f"{path.name} has {', '.join(repeated)} more than once; a column's name is used once")
    return names


def chunks(path: Path, columns: Collection[str], rows: int | None = None) -> Iterator[Chunk]:
    """The rows of a file in order, at most so many at a time (None: CHUNK_ROWS), with these columns.

    Raises WorkloadError for a file that is damaged, naming the row where that is known.
    """
    with _readable(path):
        yield from _CHUNKS[_kind(path)](path, columns, CHUNK_ROWS if rows is None else rows)


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
        raise WorkloadError(f"{path.name}: a trace ends in .csv, .jsonl, .json (each maybe with .gz) or .parquet")
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


def _csv_names(path: Path) -> list[str]:
    with open_text(path) as stream:
        rows = csv.reader(Lines(stream, path.name))
        try:
            names = [name.strip() for name in next(rows, [])]
            first = next(rows, [])
        except csv.Error as error:
            raise WorkloadError(f"{path.name}: its first lines are not CSV: {error}") from None
    if names and len(first) > len(names):  # of the first row pandas would cut the rest without an error
        raise WorkloadError(f"{path.name}: expected {len(names)} fields in line 2, saw {len(first)}")
    return names


def _csv_chunks(path: Path, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    import pandas as pd

    row = 1
    with (
        open_text(path) as stream,
        # All columns, though few are kept: with `usecols` pandas says nothing of a row with too many cells.
        pd.read_csv(
            Lines(stream, path.name),
            names=_csv_names(path),
            header=0,
            index_col=False,
            chunksize=rows,
            skipinitialspace=True,
            low_memory=False,
        ) as frames,
    ):
        for frame in frames:
            yield Chunk(path.name, row, frame[list(columns)])
            row += len(frame)


def _row_names(rows: Iterator[dict[str, Any]]) -> list[str]:
    """Keys of all rows: what only a later row has is a column too, empty on the others."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def _row_chunks(path: Path, objects: Iterator[dict[str, Any]], columns: Collection[str], rows: int) -> Iterator[Chunk]:
    import pandas as pd

    first_row = 1
    while batch := list(itertools.islice(objects, max(rows // 4, 1))):
        frame = pd.DataFrame({name: [row.get(name) for row in batch] for name in columns}, dtype=object)
        yield Chunk(path.name, first_row, frame)
        first_row += len(batch)


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return list(pq.read_schema(path).names)


def _parquet_chunks(path: Path, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    row = 1
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(rows, columns=list(columns)):
            yield Chunk(path.name, row, batch.to_pandas())
            row += batch.num_rows


_SUFFIXES = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_NAMES: dict[str, Callable[[Path], list[str]]] = {
    "csv": _csv_names,
    "jsonl": lambda path: _row_names(jsonrows.lines(path)),
    "json": lambda path: _row_names(jsonrows.items(path)),
    "parquet": _parquet_names,
}
_CHUNKS: dict[str, RowFile] = {
    "csv": _csv_chunks,
    "jsonl": lambda path, columns, rows: _row_chunks(path, jsonrows.lines(path), columns, rows),
    "json": lambda path, columns, rows: _row_chunks(path, jsonrows.items(path), columns, rows),
    "parquet": _parquet_chunks,
}

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
DEEPEST = 8  # levels of nested fields that are read

RowFile = Callable[[Path, Collection[str], int], Iterator[Chunk]]


def column_names(path: Path) -> list[str]:
    """Read the names of the columns of a file. Raises WorkloadError for a file that cannot be read."""
    kind = _kind(path)
    with _readable(path):
        names = _NAMES[kind](path)
    if not names:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request")
    repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if repeated:
        raise WorkloadError(f"{path.name} has {', '.join(repeated)} more than once; a column's name is used once")
    return names


def chunks(
    path: Path, columns: Collection[str], rows: int | None = None, texts: Collection[str] = ()
) -> Iterator[Chunk]:
    """Read these columns of a file, at most `rows` rows at a time (None: CHUNK_ROWS). texts: columns whose cells are
    kept as text, in a CSV file too.

    Raises WorkloadError for a damaged file, with the row if it is known.
    """
    with _readable(path):
        kind, rows = _kind(path), CHUNK_ROWS if rows is None else rows
        yield from _csv_chunks(path, columns, rows, texts) if kind == "csv" else _CHUNKS[kind](path, columns, rows)


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _kind(path: Path) -> str:
    """Return the format of a file, by its suffix. Raises WorkloadError."""
    if not path.exists():
        raise WorkloadError(f"there is no file {path}")
    if not path.is_file():
        raise WorkloadError(f"{path} is not a file")
    if path.stat().st_size == 0:
        raise WorkloadError(f"{path.name} is empty: a trace has at least one request")
    packed = path.suffix.lower() == ".gz"
    kind = _SUFFIXES.get((path.with_suffix("") if packed else path).suffix.lower())
    if kind is None or (packed and kind == "parquet"):
        raise WorkloadError(f"{path.name}: a trace file ends in .csv, .jsonl, .json (also with .gz) or .parquet")
    return kind


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert the errors of all libraries that read files to WorkloadError."""
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


def _delimiter(path: Path) -> str:
    """Return the delimiter of the first line: a comma, or a character that occurs in it more often."""
    with open_text(path) as stream:
        first = next(iter(Lines(stream, path.name)), "")
    return max(",;\t|", key=first.count)


def _csv_names(path: Path) -> list[str]:
    with open_text(path) as stream:
        rows = csv.reader(Lines(stream, path.name), delimiter=_delimiter(path))
        try:
            names = [name.strip() for name in next(rows, [])]
            first = next(rows, [])
        except csv.Error as error:
            raise WorkloadError(f"{path.name}: its first lines are not CSV: {error}") from None
    if names and len(first) > len(names):  # pandas would cut extra cells of the first row without an error
        raise WorkloadError(f"{path.name}: expected {len(names)} fields in line 2, saw {len(first)}")
    return names


def _csv_chunks(path: Path, columns: Collection[str], rows: int, texts: Collection[str]) -> Iterator[Chunk]:
    import pandas as pd

    row = 1
    with (
        open_text(path) as stream,
        # All columns are read: with `usecols`, pandas does not report a row with too many cells.
        pd.read_csv(
            Lines(stream, path.name),
            names=_csv_names(path),
            header=0,
            index_col=False,
            chunksize=rows,
            skipinitialspace=True,
            low_memory=False,
            sep=_delimiter(path),
            dtype=dict.fromkeys(texts, str),
        ) as frames,
    ):
        for frame in frames:
            yield Chunk(path.name, row, frame[list(columns)])
            row += len(frame)


def _row_names(rows: Iterator[dict[str, Any]]) -> list[str]:
    """Collect the keys of all rows; a row without a key has an empty cell. Nested keys are outer.inner."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
        for key, value in row.items():
            if type(value) is dict:
                names.update(dict.fromkeys(_nested_names(key, value)))
    return list(names)


def _nested_names(prefix: str, fields: dict[str, Any], depth: int = 0) -> Iterator[str]:
    for key, value in fields.items():
        yield f"{prefix}.{key}"
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _nested_names(f"{prefix}.{key}", value, depth + 1)


def field_of(row: dict[str, Any], name: str) -> Any:
    """Find the value of a field, of a nested one by outer.inner; None if there is none."""
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    found = row.get(outer) if dot else None
    return field_of(found, inner) if isinstance(found, dict) else None


def _row_chunks(path: Path, objects: Iterator[dict[str, Any]], columns: Collection[str], rows: int) -> Iterator[Chunk]:
    import pandas as pd

    first_row = 1
    while batch := list(itertools.islice(objects, max(rows // 4, 1))):
        frame = pd.DataFrame({name: [field_of(row, name) for row in batch] for name in columns}, dtype=object)
        yield Chunk(path.name, first_row, frame)
        first_row += len(batch)


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return list(_arrow_names(pq.read_schema(path)))


def _arrow_names(fields: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of an Arrow schema or struct; nested ones as outer.inner."""
    import pyarrow as pa

    for field in fields:
        yield prefix + field.name
        if pa.types.is_struct(field.type):
            yield from _arrow_names(field.type, f"{prefix}{field.name}.")


def _parquet_chunks(path: Path, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    row = 1
    with pq.ParquetFile(path) as file:
        own = file.schema_arrow.names
        outer = {name: name if name in own else name.partition(".")[0] for name in columns}
        for batch in file.iter_batches(rows, columns=list(dict.fromkeys(outer.values()))):
            frame = batch.to_pandas()
            for name in columns:
                if name not in frame:
                    frame[name] = [field_of({outer[name]: cell}, name) for cell in frame[outer[name]]]
            yield Chunk(path.name, row, frame[list(columns)])
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
    "jsonl": lambda path, columns, rows: _row_chunks(path, jsonrows.lines(path), columns, rows),
    "json": lambda path, columns, rows: _row_chunks(path, jsonrows.items(path), columns, rows),
    "parquet": _parquet_chunks,
}

"""Readers of trace files, one format a file. The format of a file is recognised from its columns.

To add one, put a file in this folder with a subclass of `Reader` (or `PublicReader`) under `@reader`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

from servegym.errors import WorkloadError
from servegym.traces import files
from servegym.traces.readers.base import READERS, Reader
from servegym.traces.reading import NONE, Reading, looks_like_time, suggested
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import Trace

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def read_trace(
    path: str | os.PathLike[str], tokenizer: Tokenizer | str | None = None, reading: Reading | None = None
) -> Trace:
    """Read a trace file of any registered format.

    path: a .csv, .jsonl, .json (a list of objects) or .parquet file (.csv.gz, .jsonl.gz and .json.gz too).
    tokenizer: only for a file of texts: "characters/4", or a function from text to tokens or their number.
    reading: names of columns, unit of times, and repairs, for a file that differs from servegym's format.
    Returns its requests as a Trace, with the file's name, SHA-256, rows and format as provenance.
    Raises WorkloadError, with the row if there is one, for a file that is missing, damaged or
    has anything but requests.
    """
    path, reading = Path(path), reading or Reading()
    names = files.column_names(path)
    kind = recognised(path.name, names, reading)
    if kind.of_texts and tokenizer is None:
        raise WorkloadError(
            f"{path.name} holds texts, not token counts: name a tokenizer, such as the estimate characters/4"
        )
    if tokenizer is not None and not kind.of_texts:
        raise WorkloadError(f"{path.name} has token counts ({kind.name}): leave the tokenizer out")
    file = kind(path, names, tokenizer, reading)
    trace = file.read()
    if trace.arrival_s is None:
        check_times(file)
    return trace


def recognised(file: str, names: list[str], reading: Reading = Reading()) -> type[Reader]:  # noqa: B008 (it is frozen)
    """Find the reader of the format with these columns; of several, the one that needs the most of them; servegym's own
    if `reading` names columns. Raises WorkloadError."""
    own, readers = READERS["own"], list(READERS)
    if reading.columns:
        sessions = READERS["sessions"]
        reading.check_known(dict.fromkeys((*own.needs, *own.optional, *sessions.needs, *sessions.optional)))
        for name, column in reading.names.items():
            if column != NONE and column not in names:
                raise WorkloadError(
                    f"{file} has no column {column}, which --columns names for {name}; it has {_shortened(names)}"
                )
    if reading.renames:
        names, readers = [*names, *(name for name, column in reading.names.items() if column != NONE)], [own, sessions]
    fitting = [reader for reader in readers if set(reader.needs) <= set(names)]
    if not fitting:
        missing = [name for name in own.needs if name not in names]
        others = ", ".join(reader.name for reader in READERS if reader is not own)
        raise WorkloadError(
            f"{file} has columns {_shortened(names)}; a trace of your own needs {', '.join(own.needs)}"
            f" (missing: {', '.join(missing)}): name these columns, such as {suggested(names)}"
            f" (other formats, recognised by their columns: {others})"
        )
    return max(fitting, key=lambda reader: len(reader.needs))


def check_times(file: Reader) -> None:
    """Raise WorkloadError for a file that was read without times though it has a column that looks like times."""
    if file.reading.names.get("arrival_s") == NONE:
        return
    for column in file.ignored:
        if looks_like_time(column):
            given = ",".join(f"{name}={column}" for name, column in file.reading.names.items())
            option = f"--columns {given + ',' if given else ''}arrival="
            raise WorkloadError(
                f"{file.path.name}: column {column} looks like the times of requests, but is not read; give "
                f"{option}{column}, or {option}{NONE} to draw arrivals instead"
            )


def _shortened(names: list[str], most: int = 12, longest: int = 40) -> str:
    shown = [name[:longest] if name.isprintable() else repr(name)[:longest] for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")

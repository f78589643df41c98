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
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import Trace

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def read_trace(path: str | os.PathLike[str], tokenizer: Tokenizer | str | None = None) -> Trace:
    """Read a trace file of any registered format.

    path: a .csv, .jsonl, .json (a list of objects) or .parquet file (.csv.gz, .jsonl.gz and .json.gz too).
    tokenizer: for a file of texts, and for no other: "characters/4", or a function from text to tokens or
        their number.
    Returns its requests as a Trace, with the file's name, SHA-256, rows and format as provenance.
    Raises WorkloadError, with the row where there is one, for a file that is missing, damaged or
    holds anything but requests.
    """
    path = Path(path)
    names = files.column_names(path)
    kind = recognised(path.name, names)
    if kind.of_texts and tokenizer is None:
        raise WorkloadError(
            f"{path.name} holds texts, not token counts: name a tokenizer, such as the estimate characters/4"
        )
    if tokenizer is not None and not kind.of_texts:
        raise WorkloadError(f"{path.name} has token counts ({kind.name}): leave the tokenizer out")
    return kind(path, names, tokenizer).read()


def recognised(file: str, names: list[str]) -> type[Reader]:
    """The reader of the format that has these columns; of several, the one that needs the most of them."""
    fitting = [reader for reader in READERS if set(reader.needs) <= set(names)]
    if not fitting:
        own = READERS["own"]
        missing = [name for name in own.needs if name not in names]
        others = [f"{reader.name} ({', '.join(reader.needs)})" for reader in READERS if reader is not own]
        raise WorkloadError(
            f"{file} has columns {_shortened(names)}; a trace of one's own needs {', '.join(own.needs)}"
            f" (missing: {', '.join(missing)}); other formats: {'; '.join(others)}"
        )
    return max(fitting, key=lambda reader: len(reader.needs))


def _shortened(names: list[str], most: int = 12, longest: int = 40) -> str:
    shown = [name[:longest] if name.isprintable() else repr(name)[:longest] for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")

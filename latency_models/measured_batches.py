"""Tables of measured batches: one row a batch with its duration, from CSV or Parquet.

Columns, with tokens and counts of the whole batch:
    duration_s              seconds, above 0
    prefill_tokens          tokens computed by prefills                     absent: 0
    prefill_requests        prefills                                        absent: 1 if there are prefill tokens
    prefill_cached_tokens   tokens cached before them                       absent: 0
    decode_requests         decodes                                         absent: 0
    decode_cached_tokens    tokens cached for them                          needed with decode_requests
and, if known, the other fields of BATCH (simulator/records/types.py). Without them, prefills are assumed to have equal
lengths and cached tokens, and decodes to have equal cached tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.model import BATCH_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

DURATION = "duration_s"
COUNTS = ("prefill_tokens", "decode_requests")


def read_batches(path: str | Path) -> pd.DataFrame:
    """Read a table with every field of BATCH and duration_s, float64, in the file's order.

    Raises ProfileError for a file that cannot be read, a column that is missing or not of numbers, and a row with
    numbers that are negative, not finite or inconsistent, or without tokens.
    """
    path = Path(path)
    given = _read(path)
    known = [name for name in (*BATCH_COLUMNS, DURATION) if name in given]
    if DURATION not in given:
        raise ProfileError(f"{path}: column '{DURATION}' is missing; it has {', '.join(map(str, given.columns))}")
    if not any(name in given for name in COUNTS):
        raise ProfileError(f"{path}: neither column '{COUNTS[0]}' nor '{COUNTS[1]}' is there; batches need one of them")
    if given.empty:
        raise ProfileError(f"{path} has no rows; a row is a measured batch")
    table = given[known].copy()
    for name in known:
        table[name] = _numbers(table[name], f"{path}: {name}")
    _complete(table, path)
    return table[[*BATCH_COLUMNS, DURATION]]


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise ProfileError(f"{path}: batches are read from .csv and .parquet files")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # readers raise errors of many types for a malformed file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProfileError(f"{path} is not a {path.suffix[1:]} table: {reason}") from None


def _numbers(column: pd.Series, where: str) -> np.ndarray:
    """Return the numbers of a column. Rows are counted from 1, without the header, as in traces."""
    try:
        numbers = column.to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        row, cell = next((row, cell) for row, cell in enumerate(column, 1) if not _is_number(cell))
        raise ProfileError(f"{where} is {cell!r} in row {row}; it must be a number") from None
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(bad):
        raise ProfileError(f"{where} is {numbers[bad[0]]} in row {bad[0] + 1}; it must be finite, 0 or above")
    return numbers


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _complete(table: pd.DataFrame, path: Path) -> None:
    """Add missing columns. Raises ProfileError for an impossible batch."""
    for name in COUNTS:
        if name not in table:
            table[name] = 0.0
    tokens, decodes = (table[name] for name in COUNTS)
    if "decode_cached_tokens" not in table:
        if decodes.any():
            raise ProfileError(f"{path}: column 'decode_cached_tokens' is missing; the time of decodes depends on it")
        table["decode_cached_tokens"] = 0.0
    if "prefill_requests" not in table:
        table["prefill_requests"] = (tokens > 0).astype(float)
    if "prefill_cached_tokens" not in table:
        table["prefill_cached_tokens"] = 0.0
    prefills = table["prefill_requests"]
    for wrong, what in (
        ((tokens == 0) & (decodes == 0), "is an empty batch"),
        (tokens < prefills, "has fewer prefill_tokens than prefill_requests"),
        ((prefills == 0) & (tokens + table["prefill_cached_tokens"] > 0), "has prefill tokens but no prefill_requests"),
        ((decodes == 0) & (table["decode_cached_tokens"] > 0), "has decode_cached_tokens but no decode_requests"),
    ):
        if wrong.any():
            raise ProfileError(f"{path}: row {int(np.argmax(wrong)) + 1} {what}")
    chunk = tokens / prefills.clip(lower=1)
    before = table["prefill_cached_tokens"] / prefills.clip(lower=1)
    for name, value in (
        ("prefill_tokens_squared", tokens * chunk),
        ("prefill_tokens_cached", tokens * before),
        ("longest_prefill_tokens", chunk),
        ("longest_decode_cached", table["decode_cached_tokens"] / decodes.clip(lower=1)),
    ):
        if name not in table:
            table[name] = value

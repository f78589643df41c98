"""Read served requests from the tables of several tools, and check them row by row."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.evaluation.measured.tools import LENGTHS, WORDS, tool_of
from servegym.traces import files
from servegym.traces.cells import Chunk
from servegym.traces.readers.own import slo_columns
from servegym.traces.reading import NONE, UNITS, Reading, suggested

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")
TIMES = ("arrival_s", "ttft_s", "e2e_s")
OPTIONAL = (
    "failed", "prompt_id", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "prefix_blocks",
    "prefix_block_tokens",
)  # fmt: skip
SLOWEST_S = 2.0  # a later token: if most answers take longer, their times are taken to be milliseconds
NO_ADAPTER = ("", 0, "0")  # the model itself
FINISHED = "finished"  # as `servegym replay` has it


def requests_of(file: Path, reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    """Read a file's requests: a table with NEEDED and failed, in the file's order, and notes on what was left out.

    The file is a table with NEEDED (under the names that `reading` has), one of `servegym replay`, a proxy's log, or
    the result of a tool (`measured.tools`). Failed requests without lengths are left out. Raises WorkloadError, with
    the row where there is one.
    """
    names = files.column_names(file)
    of_tool = tool_of(names)
    rows = Chunk(file.name, 1, _frame(file, names))
    notes: list[str] = []
    if of_tool is None or reading.columns:
        rows = _own(rows, names, reading)
        rows, notes = as_asked(rows)
    else:
        if reading.options:
            raise WorkloadError(f"{reading.options}: {file.name} says itself which column is what ({WORDS[of_tool]})")
        rows = of_tool(rows)
    table, left_out = checked(rows, reading)
    return table, [*notes, *left_out]


def is_measured(names: Collection[str], reading: Reading) -> bool:
    """Return whether a file with these columns has the times at which its requests were served."""
    known = {*names, *reading.names}
    return tool_of(names) is not None or "ttft_s" in known or {"ttlt_s", "status"} <= known


def checked(rows: Chunk, reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    """Check that the requests of the rows can have been served, and return the rows."""
    table, known = rows.frame.copy(), np.ones(len(rows), bool)
    failed = table["failed"].fillna(False).astype(bool).to_numpy() if "failed" in table else ~known
    for name in LENGTHS:
        numbers = rows.numbers(name, "a whole number of tokens", np.nan)
        is_length = (numbers >= 1) & (numbers == np.floor(numbers))
        rows.check(name, ~failed & ~is_length, "a whole number of tokens, 1 or more")
        table[name], known = numbers, known & is_length
    table = table.assign(**checked_times(rows, ~failed, reading))
    if failed.all():
        raise WorkloadError(f"{rows.file}: every request failed; there should be some that were served")
    notes = [f"{int((~known).sum())} requests that failed have no lengths, and are left out"] if not known.all() else []
    table = table.assign(failed=failed)[known]
    return table.astype(dict.fromkeys(LENGTHS, "i8")), notes


def as_asked(rows: Chunk) -> tuple[Chunk, list[str]]:
    """Read the SLOs that requests asked for, and leave adapters out, with a note.

    A file of requests does not say how adapters were served.
    """
    frame, notes = rows.frame.assign(**slo_columns(rows)), []
    if "adapter" in rows:
        named = int((~frame["adapter"].isin(NO_ADAPTER) & frame["adapter"].notna()).sum())
        notes = [f"the adapters of {named} requests count as the model itself"] if named else []
        frame = frame.drop(columns="adapter")
    return Chunk(rows.file, rows.first_row, frame, rows.names), notes


def checked_times(rows: Chunk, served: np.ndarray, reading: Reading) -> dict[str, np.ndarray]:
    """Read the TIMES of requests, float64[rows] of seconds; those of requests that were not served may be NaN.

    Raises WorkloadError for impossible times, and for seconds that SLOWEST_S rules out, unless the unit is given.
    """
    times = {name: _seconds(rows, name, reading) for name in TIMES}
    rows.check("arrival_s", ~np.isfinite(times["arrival_s"]), "a finite time")
    ttft_s, e2e_s = times["ttft_s"], times["e2e_s"]
    rows.check("e2e_s", served & ~((e2e_s >= 0) & np.isfinite(e2e_s)), "finite seconds of 0 or more")
    rows.check("ttft_s", served & ~((ttft_s >= 0) & (ttft_s <= e2e_s)), "finite seconds from 0 on, ttft_s <= e2e_s")
    later = rows.numbers("output_tokens", "a whole number of tokens", np.nan) - 1
    slow = (e2e_s - ttft_s > SLOWEST_S * later)[served & (later > 0)]
    if reading.time_unit is None and slow.sum() > len(slow) / 2:
        raise WorkloadError(
            f"{rows.file}: most answers take more than {SLOWEST_S:g} s a later token; give --time-unit, ms for times "
            "in milliseconds, s if they are right"
        )
    return times


def _frame(file: Path, names: list[str]) -> pd.DataFrame:
    return pd.concat([chunk.frame for chunk in files.chunks(file, names)], ignore_index=True)


def _own(rows: Chunk, names: list[str], reading: Reading) -> Chunk:
    """Read a table with NEEDED, one of `servegym replay` (its ttlt_s is e2e_s), or a proxy's log.

    What did not finish has failed. Raises WorkloadError for a missing column.
    """
    reading.check_known((*NEEDED, *OPTIONAL))
    frame, named = rows.frame, {name: column for name, column in reading.names.items() if column != NONE}
    for name, column in named.items():
        if column not in names:
            raise WorkloadError(f"{rows.file} has no column {column}, which --columns names for {name}")
    if "e2e_s" not in names and {"ttlt_s", "status"} <= set(names):
        frame = frame.assign(e2e_s=frame["ttlt_s"], failed=frame["status"] != FINISHED)
    if "failed" not in names and {"outcome", "e2e_s"} <= set(names):  # a proxy's log
        done = (frame["outcome"] == FINISHED) & (frame["output_tokens"] >= 1) & frame["ttft_s"].notna()
        frame = frame.assign(failed=~done)
    frame = frame.assign(**{name: rows.frame[column] for name, column in named.items()})
    missing = [name for name in NEEDED if name not in frame]
    if missing:
        raise WorkloadError(
            f"{rows.file}: column {missing[0]} is missing; a run has {', '.join(NEEDED)}, or --columns says which "
            f"columns these are, such as {suggested(names)},ttft=COLUMN,e2e=COLUMN"
        )
    return Chunk(rows.file, 1, frame, named)


def _seconds(rows: Chunk, name: str, reading: Reading) -> np.ndarray:
    """Return a column of times in seconds, float64[rows]; arrivals may be dates, and count from the first."""
    per_s = UNITS[reading.time_unit or "s"]
    if name != "arrival_s":
        return rows.numbers(name, "seconds", np.nan) / per_s
    times, are_dates = rows.instants(name, "")
    return (times - times.min()) / (UNITS["ns"] if are_dates else per_s)

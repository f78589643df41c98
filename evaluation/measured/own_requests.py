"""Requests of one's own as they were served: the tables of several tools as one, checked row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces import files
from servegym.traces.cells import Chunk
from servegym.traces.reading import NONE, UNITS, Reading, suggested

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")
LENGTHS, TIMES = ("prompt_tokens", "output_tokens"), ("arrival_s", "ttft_s", "e2e_s")
OPTIONAL = ("failed", "prompt_id", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")
FINISHED = "finished"  # as `servegym replay` has it
VLLM = ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")
AIPERF = {
    "arrival_s": "metadata.request_start_ns",
    "prompt_tokens": "metrics.input_sequence_length",
    "output_tokens": "metrics.output_sequence_length",
    "ttft_s": "metrics.time_to_first_token",
    "e2e_s": "metrics.request_latency",
}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}  # by AIPerf's names of units


def requests_of(file: Path, reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    """The requests of a file with NEEDED and failed, in its order, and notes on what was left out.

    The file is a table with NEEDED (under the names that `reading` says), one of `servegym replay`, the detailed result
    of `vllm bench serve`, or AIPerf's records. Failed requests without lengths are left out. Raises WorkloadError, with
    the row where there is one.
    """
    names = files.column_names(file)
    of_tool = tool_of(names)
    rows = Chunk(file.name, 1, _frame(file, names))
    if of_tool is None or reading.columns:
        rows = _own(rows, names, reading)
    else:
        if reading.says:
            raise WorkloadError(f"{reading.says}: {file.name} says itself which column is what ({of_tool.__doc__})")
        rows = of_tool(rows)
    return checked(rows, reading)


def tool_of(names: Collection[str]) -> Callable[[Chunk], Chunk] | None:
    """What reads the result of a tool, by its columns; None: it is no tool's."""
    return next((read for name, read in TOOLS.items() if name in names), None)


def is_measured(names: Collection[str], reading: Reading) -> bool:
    """Whether a file with these columns says how its requests were served."""
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
    for name in TIMES:
        table[name] = _seconds(rows, name, reading)
    rows.check("arrival_s", ~np.isfinite(table["arrival_s"].to_numpy()), "a finite time")
    e2e_s, ttft_s = table["e2e_s"].to_numpy(), table["ttft_s"].to_numpy()
    rows.check("e2e_s", ~failed & ~((e2e_s >= 0) & np.isfinite(e2e_s)), "finite seconds of 0 or more")
    rows.check("ttft_s", ~failed & ~((ttft_s >= 0) & (ttft_s <= e2e_s)), "finite seconds from 0 on, ttft_s <= e2e_s")
    if failed.all():
        raise WorkloadError(f"{rows.file}: every request failed; there should be some that were served")
    notes = [f"{int((~known).sum())} requests that failed have no lengths, and are left out"] if not known.all() else []
    table = table.assign(failed=failed)[known]
    return table.astype(dict.fromkeys(LENGTHS, "i8")), notes


def _frame(file: Path, names: list[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([chunk.frame for chunk in files.chunks(file, names)], ignore_index=True)


def _own(rows: Chunk, names: list[str], reading: Reading) -> Chunk:
    """A table with NEEDED, or of `servegym replay`: its ttlt_s is e2e_s, and what did not finish has failed."""
    reading.check_known((*NEEDED, *OPTIONAL))
    frame, said = rows.frame, {name: column for name, column in reading.names.items() if column != NONE}
    for name, column in said.items():
        if column not in names:
            raise WorkloadError(f"{rows.file} has no column {column}, which --columns names for {name}")
    if "e2e_s" not in names and {"ttlt_s", "status"} <= set(names):
        frame = frame.assign(e2e_s=frame["ttlt_s"], failed=frame["status"] != FINISHED)
    frame = frame.assign(**{name: rows.frame[column] for name, column in said.items()})
    missing = [name for name in NEEDED if name not in frame]
    if missing:
        raise WorkloadError(
            f"{rows.file}: column {missing[0]} is missing; a run has {', '.join(NEEDED)}, or --columns says which "
            f"columns these are, such as {suggested(names)},ttft=COLUMN,e2e=COLUMN"
        )
    return Chunk(rows.file, 1, frame, said)


def _seconds(rows: Chunk, name: str, reading: Reading) -> np.ndarray:
    """float64[rows]: a column of times, in the unit of the reading; arrivals may be dates, and count from the first."""
    per_s = UNITS[reading.time_unit or "s"]
    if name != "arrival_s":
        return rows.numbers(name, "seconds", np.nan) / per_s
    times, are_dates = rows.instants(name, "")
    return (times - times.min()) / (UNITS["ns"] if are_dates else per_s)


def vllm_bench(rows: Chunk) -> Chunk:
    """the result of `vllm bench serve --save-detailed`"""
    import pandas as pd

    lists: dict[str, list[Any]] = {}
    for name in VLLM:
        value = rows.frame[name].iloc[0] if name in rows else None
        if not isinstance(value, list):
            raise WorkloadError(
                f"{rows.file} has no list {name}: save the result of `vllm bench serve` with --save-detailed"
            )
        lists[name] = value
    counts = {len(value) for value in lists.values()}
    if len(counts) > 1:
        raise WorkloadError(
            f"{rows.file}: {', '.join(VLLM)} differ in length; they should have a value for each request"
        )
    table = pd.DataFrame({name: lists[name] for name in VLLM if name != "itls"})
    e2e_s = [ttft_s + sum(gaps) for ttft_s, gaps in zip(lists["ttfts"], lists["itls"], strict=True)]
    made = {
        "arrival_s": "start_times",
        "prompt_tokens": "input_lens",
        "output_tokens": "output_lens",
        "ttft_s": "ttfts",
    }
    table = table.assign(**{name: table[column] for name, column in made.items()})
    return Chunk(rows.file, 1, table.assign(e2e_s=e2e_s, failed=table["errors"].astype(bool)), made)


def aiperf(rows: Chunk) -> Chunk:
    """AIPerf's records, a line a request"""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, column in AIPERF.items():
        cells = rows.frame[column] if column in rows else pd.Series([None] * len(rows), dtype=object)
        if name == "arrival_s":  # from the first one, exactly: nanoseconds since 1970 are beyond 2^53
            times = rows.instants(column, "")[0]
            columns[name] = (times - times.min()) / UNITS["ns"]
            continue
        values = [cell.get("value") if isinstance(cell, dict) else None for cell in cells]
        units = [cell.get("unit") if isinstance(cell, dict) else "s" for cell in cells]
        if name in LENGTHS:
            columns[name] = values
            continue
        rows.check(column, np.array([unit not in SECONDS for unit in units]), f"in {', '.join(SECONDS)}")
        scaled = (
            None if value is None else value * SECONDS[str(unit)] for value, unit in zip(values, units, strict=True)
        )
        columns[name] = pd.Series(list(scaled), dtype=object)
    table = pd.DataFrame(columns).astype(object)
    metrics = rows.frame[[column for column in AIPERF.values() if column in rows and column != AIPERF["arrival_s"]]]
    error = rows.frame["error"].notna() if "error" in rows else False
    return Chunk(rows.file, 1, table.assign(failed=metrics.isna().all(axis=1) | error), AIPERF)


TOOLS: dict[str, Callable[[Chunk], Chunk]] = {"input_lens": vllm_bench, "metadata.request_start_ns": aiperf}

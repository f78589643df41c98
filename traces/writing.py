"""Traces and workloads as files in servegym's own format, which `read_trace` reads back."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.replacing import replacing
from servegym.simulator.inputs.workload import DEFAULTS, Workload
from servegym.traces.loading import load_trace
from servegym.traces.readers.own import BLOCK_TOKENS
from servegym.traces.reading import Reading
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import PrefixBlocks, Trace
from servegym.traces.workloads import build_trace

if TYPE_CHECKING:
    import pandas as pd

CHUNK_ROWS = 262_144
ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
# What an empty cell stands for.
_EMPTY = {"ttlt_slo_s": np.inf, "predicted_output_tokens": np.nan, "after": np.nan, "think_s": np.nan}


def convert(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    requests: int | None = None,
    rate_per_s: float | None = None,
    slo: str | None = None,
    arrivals: str | None = None,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
    window: int | str = "first",
    idle_tpot_s: float | None = None,
    tokenizer: Tokenizer | str | None = None,
    reading: Reading | None = None,
) -> Trace:
    """Write a family's or a file's requests as a trace of one's own, and return them.

    Arguments as `build_workload`, save that slo=None adds no SLOs, priorities and weights to those the trace
    has, and that a trace without times stays without where neither a rate nor arrivals are asked for.
    What is written, built again with slo="given", is the workload that `build_workload` makes of the same
    arguments. Raises WorkloadError.
    """
    checked_ending(Path(path))
    trace = load_trace(
        source,
        requests=requests,
        seed=seed,
        max_prompt_tokens=max_prompt_tokens,
        max_total_tokens=max_total_tokens,
        window=window,
        tokenizer=tokenizer,
        reading=reading,
    )
    timeless = trace.arrival_s is None and rate_per_s is None and arrivals is None
    if timeless and slo is not None:
        raise WorkloadError(f"trace '{trace.name}': a recipe needs arrivals, and arrivals need a rate")
    if not timeless:
        trace = build_trace(
            trace, rate_per_s=rate_per_s, slo=slo or "given", arrivals=arrivals, seed=seed, idle_tpot_s=idle_tpot_s
        )
    write(trace, path)
    return trace


def write(requests: Trace | Workload, path: str | os.PathLike[str]) -> None:
    """Write requests to a file that ends in one of ENDINGS; a file of that name is replaced once all is written.

    Numbers are written in full. Raises WorkloadError.
    """
    path = Path(path)
    ending = checked_ending(path)
    trace = requests if isinstance(requests, Trace) else _as_trace(requests)
    try:
        with replacing(path) as draft:
            if ending == ".parquet":
                _write_parquet(trace, draft)
            else:
                opener: Any = gzip.open if ending.endswith(".gz") else open
                with opener(draft, "wt", encoding="utf-8", newline="") as stream:
                    _write_text(trace, stream, ".jsonl" in ending)
    except OSError as error:
        raise WorkloadError(f"{path} cannot be written: {error.strerror}") from None


def checked_ending(path: Path) -> str:
    """Find which of ENDINGS a file's name has. Raises WorkloadError."""
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return ending
    raise WorkloadError(f"{path.name}: a trace is written to a file that ends in {', '.join(ENDINGS)}")


def _as_trace(workload: Workload) -> Trace:
    """Return a workload's columns as a trace; those that all have their default are left out."""
    table = workload.table
    given = {
        field: table[field]
        for field, default in DEFAULTS.items()
        if not np.array_equal(table[field], np.full(len(table), default), equal_nan=True)
    }
    prompts, blocks = workload.prefixes, None
    if prompts is not None:
        offsets, chunks = prompts.of_prompts(table["prompt_tokens"])
        blocks = PrefixBlocks(offsets, chunks.astype("i8"), prompts.chunk_tokens)
    return Trace(
        workload.name, table["prompt_tokens"], table["output_tokens"], table["arrival_s"], given, prefix_blocks=blocks,
        turns=workload.turns, ids=workload.ids,
    )  # fmt: skip


def _frames(trace: Trace) -> Iterator[pd.DataFrame]:
    """Yield the columns of a file, CHUNK_ROWS rows at a time. Prefix blocks are lists."""
    import pandas as pd

    more, trace = _session_columns(trace), dataclasses.replace(trace, turns=None)
    for start in range(0, len(trace), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, len(trace)))
        part = trace.take(rows)
        columns: dict[str, Any] = {field: _cells(field, column[rows], trace) for field, column in more.items()}
        if part.arrival_s is not None:
            columns["arrival_s"] = _cells("think_s", part.arrival_s, trace) if more else part.arrival_s
        columns |= {"prompt_tokens": part.prompt_tokens, "output_tokens": part.output_tokens}
        for field, column in part.given.items():
            columns[field] = _cells(field, column, trace)
        if part.ids is not None:
            columns["request_id"] = part.ids
        if part.prefix_blocks is not None:
            ids, offsets = part.prefix_blocks.ids.view("u8"), part.prefix_blocks.offsets
            columns["prefix_blocks"] = [block.tolist() for block in np.split(ids, offsets[1:-1])]
            if part.prefix_blocks.block_tokens not in (None, BLOCK_TOKENS):  # readers know them already
                columns["prefix_block_tokens"] = part.prefix_blocks.block_tokens
        yield pd.DataFrame(columns)


def _session_columns(trace: Trace) -> dict[str, np.ndarray]:
    """session, turn, after, think_s of a trace with sessions. Turns are numbered so that each follows a lower one."""
    turns = trace.turns
    if turns is None:
        return {}
    session, depth, before = turns.session, np.zeros(len(trace), "i8"), turns.after
    while (before >= 0).any():
        depth += before >= 0
        before = np.where(before >= 0, turns.after[before], -1)
    order = np.lexsort((np.arange(len(trace)), depth, session))
    turn = np.empty(len(trace), "i8")
    turn[order] = np.arange(len(trace)) - np.searchsorted(session[order], session[order])
    follows = turns.after >= 0
    return {
        "session": session,
        "turn": turn,
        "after": np.where(follows, turn[turns.after], np.nan),
        "think_s": np.where(follows, turns.think_s, np.nan),
    }


def _cells(field: str, column: np.ndarray, trace: Trace) -> Any:
    """Return a column as it is written: names in place of codes, nothing in place of what nothing stands for."""
    import pandas as pd

    if trace.labels.get(field):
        return np.array(trace.labels[field], object)[column]
    if field in _EMPTY:
        cells = column.astype(object)
        cells[np.isnan(column) | (column == _EMPTY[field])] = None
        return pd.Series(cells, dtype=object)
    return column


def _write_text(trace: Trace, stream: IO[str], jsonl: bool) -> None:
    for number, frame in enumerate(_frames(trace)):
        if jsonl:
            stream.writelines(json.dumps(row) + "\n" for row in frame.to_dict("records"))
            continue
        if "prefix_blocks" in frame:
            frame["prefix_blocks"] = [" ".join(map(str, blocks)) for blocks in frame["prefix_blocks"]]
        frame.to_csv(stream, index=False, header=number == 0, lineterminator="\n")


def _write_parquet(trace: Trace, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for frame in _frames(trace):
            for field in (*_EMPTY, "arrival_s"):
                if field in frame:
                    frame[field] = frame[field].astype("f8")
            blocks = frame.pop("prefix_blocks") if "prefix_blocks" in frame else None
            table = pa.Table.from_pandas(frame, preserve_index=False)
            if blocks is not None:
                table = table.append_column("prefix_blocks", pa.array(blocks, pa.list_(pa.uint64())))
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()

"""Reads results of benchmark tools as tables of requests that were served.

Columns: arrival_s, prompt_tokens, output_tokens, ttft_s, e2e_s, failed. Readers raise WorkloadError, with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.traces.cells import Chunk
from servegym.traces.readers import dynamo as dynamo_trace
from servegym.traces.readers import opentelemetry as spans
from servegym.traces.reading import UNITS

LENGTHS = ("prompt_tokens", "output_tokens")
VLLM = ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")
AIPERF = {
    "arrival_s": "metadata.request_start_ns",
    "prompt_tokens": "metrics.input_sequence_length",
    "output_tokens": "metrics.output_sequence_length",
    "ttft_s": "metrics.time_to_first_token",
    "e2e_s": "metrics.request_latency",
}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}  # by AIPerf's names of units
STATUSES = {"successful": False, "incomplete": True, "errored": True}  # of GuideLLM's requests: whether it failed
# Of GuideLLM 0.4 and later, and before.
GUIDELLM = {
    "arrival_s": ("request_start_time", "start_time"),
    "prompt_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
    "ttft_s": ("time_to_first_token_ms",),
    "e2e_s": ("request_latency",),
}
# Of inference-perf before it had multimodal requests, and since.
INFERENCE_PERF = {
    "prompt_tokens": ("info.input_tokens", "info.request_metrics.text.input_tokens"),
    "output_tokens": ("info.output_tokens", "info.response_metrics.output_tokens"),
    "times": ("info.output_token_times", "info.response_metrics.output_token_times"),
}


def vllm_bench(rows: Chunk) -> Chunk:
    """Read a result with a list for each field."""
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
    """Read records with a value and a unit for each metric."""
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


def guidellm(rows: Chunk) -> Chunk:
    """Read all benchmarks of a report, one after the other."""
    found: list[dict[str, Any]] = []
    for number, benchmark in enumerate(rows.frame["benchmarks"].iloc[0], start=1):
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(requests, dict) or not any(requests.get(status) for status in STATUSES):
            raise WorkloadError(
                f"{rows.file}: benchmark {number} has no requests; it should have requests.successful, a list with each"
            )
        for status, failed in STATUSES.items():
            found += [_of_guidellm(request, failed) for request in requests.get(status) or []]
    table = pd.DataFrame(found, dtype=object)
    starts = pd.to_numeric(table["arrival_s"], errors="coerce")
    if starts.isna().any():
        raise WorkloadError(f"{rows.file}: a request has no {GUIDELLM['arrival_s'][0]}; it should have seconds")
    table = table.assign(arrival_s=starts - starts.min()).sort_values("arrival_s", kind="stable", ignore_index=True)
    return Chunk(rows.file, 1, table, {name: keys[0] for name, keys in GUIDELLM.items()})


def _of_guidellm(request: dict[str, Any], failed: bool) -> dict[str, Any]:
    row = {name: next((request[key] for key in keys if request.get(key) is not None), None)
           for name, keys in GUIDELLM.items()}  # fmt: skip
    if isinstance(row["ttft_s"], int | float):
        row["ttft_s"] /= 1e3
    if row["e2e_s"] is None and isinstance(request.get("end_time"), int | float):
        row["e2e_s"] = request["end_time"] - row["arrival_s"]
    return row | {"failed": failed}


def inference_perf(rows: Chunk) -> Chunk:
    """Read requests with the time of each token."""
    names = {name: next((column for column in columns if column in rows), None)
             for name, columns in INFERENCE_PERF.items()}  # fmt: skip
    if names["times"] is None or not any(isinstance(times, list) and times for times in rows.frame[names["times"]]):
        raise WorkloadError(
            f"{rows.file} has no times of tokens ({INFERENCE_PERF['times'][-1]}): run inference-perf with streaming on"
        )
    starts, ends = (rows.numbers(name, "seconds", np.nan) for name in ("start_time", "end_time"))
    firsts = [times[0] if isinstance(times, list) and times else np.nan for times in rows.frame[names["times"]]]
    error = rows.frame["error"].notna().to_numpy() if "error" in rows else np.zeros(len(rows), bool)
    table = rows.frame.assign(
        arrival_s=starts - np.nanmin(starts), ttft_s=np.array(firsts, "f8") - starts, e2e_s=ends - starts,
        failed=error | np.isnan(np.array(firsts, "f8")),
        **{name: rows.frame[names[name]] for name in ("prompt_tokens", "output_tokens") if names[name] is not None},
    )  # fmt: skip
    found = {name: column for name, column in names.items() if column and name != "times"}
    return Chunk(rows.file, 1, table, {"arrival_s": "start_time", **found})


def dynamo(rows: Chunk) -> Chunk:
    """Read requests as the trace reader does, with their times."""
    table = dynamo_trace.requests_in(rows)
    first_ms = table["arrival_ms"].min() if len(table) else 0.0
    return _served(rows, dynamo_trace.FIELDS, table.assign(
        arrival_s=(table["arrival_ms"] - first_ms) / 1e3, ttft_s=table["ttft_ms"].astype("f8") / 1e3,
        e2e_s=table["e2e_ms"].astype("f8") / 1e3,
    ))  # fmt: skip


def opentelemetry(rows: Chunk) -> Chunk:
    """Read spans as the trace reader does, with their times."""
    table = spans.requests_in(rows)
    first_ns = min(table["arrival_ns"], default=0)
    arrival_s = [(int(arrival_ns) - int(first_ns)) / 1e9 for arrival_ns in table["arrival_ns"]]
    return _served(rows, {name: key for key, name in spans.ATTRIBUTES.items()}, table.assign(arrival_s=arrival_s))


def _served(rows: Chunk, columns: dict[str, str], table: Any) -> Chunk:
    """Mark requests without a time of the first token as failed. Raises WorkloadError if none has one."""
    known = table["ttft_s"].notna()
    if not known.any():
        raise WorkloadError(
            f"{rows.file}: no request says when its first token came; `servegym trace convert` makes a trace of it"
        )
    return Chunk(rows.file, 1, table.assign(failed=~known).reset_index(drop=True), columns)


# By a column that a tool's result has, and no other.
TOOLS: dict[str, Callable[[Chunk], Chunk]] = {
    "input_lens": vllm_bench,
    "metadata.request_start_ns": aiperf,
    "benchmarks": guidellm,
    **dict.fromkeys(INFERENCE_PERF["prompt_tokens"], inference_perf),
    "event_time_unix_ms": dynamo,
    "resourceSpans": opentelemetry,
}
WORDS: dict[Callable[[Chunk], Chunk], str] = {
    vllm_bench: "the result of `vllm bench serve --save-detailed`",
    aiperf: "AIPerf's records, a line a request",
    guidellm: "the report of `guidellm benchmark` in JSON, all its benchmarks one after the other",
    inference_perf: "inference-perf's per_request_lifecycle_metrics.json",
    dynamo: "Dynamo's request traces",
    opentelemetry: "OpenTelemetry's spans",
}
OF_TRACES = (dynamo, opentelemetry)  # formats that are read as traces too, with what their prompts share


def tool_of(names: Collection[str]) -> Callable[[Chunk], Chunk] | None:
    """Return the reader of a tool's result, recognised by its columns; None for other files."""
    return next((read for name, read in TOOLS.items() if name in names), None)

"""A recording: the requests of a trace, a log or a benchmark's result, and how they were served where it says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from servegym.errors import WorkloadError
from servegym.evaluation.measured.own_requests import is_measured
from servegym.evaluation.measured.runs import Run, read_own
from servegym.evaluation.measured.tools import OF_TRACES, tool_of
from servegym.traces import files
from servegym.traces.loading import load_trace, within_limits
from servegym.traces.prefixes import prompts_of
from servegym.traces.readers import read_trace
from servegym.traces.reading import NONE, Reading
from servegym.traces.trace import PrefixBlocks, Trace
from servegym.traces.workloads import trace_names

REQUESTS = 4000  # drawn of a family of generated requests
MEASURED = ("ttft_s", "e2e_s", "failed", "prompt_id")  # columns that say how a request was served, or repeats
GIVEN = ("priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")
MOST_FAILED = 0.02  # of the measured requests: as many may be left out of the comparison


@dataclasses.dataclass(frozen=True)
class Served:
    """The setup that served a recording: engines, their limits, and the router."""

    engines: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    router: str = "round-robin"
    long_prefill_token_threshold: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """trace: its requests. run: the same as they were measured; None: the file has no times. notes: what was left out
    or put right."""

    trace: Trace
    run: Run | None = None
    notes: tuple[str, ...] = ()


def read_recording(
    file: str,
    served: Served = Served(),
    reading: Reading = Reading(),  # noqa: B008 (it is frozen)
    *,
    requests: int | None = None,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
) -> Recording:
    """A recording from a file of any format that `validate` or `simulate` reads, or requests of a family.

    requests: the first so many; of a family so many are drawn. max_prompt_tokens, max_total_tokens: longer requests are
    left out. Raises WorkloadError.
    """
    path = Path(file)
    if file in trace_names() or not path.exists() or not is_measured(names := files.column_names(path), reading):
        trace = load_trace(
            file, requests=requests, default_requests=REQUESTS, reading=reading, max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=max_total_tokens,
        )  # fmt: skip
        return Recording(trace, None, notes_of(trace))
    run = without_failed(read_own(path, served.max_num_seqs, served.max_num_batched_tokens, reading))
    run = dataclasses.replace(run, engines=served.engines, router=served.router)
    if served.long_prefill_token_threshold:
        run = dataclasses.replace(
            run, scheduler=f"{run.scheduler}:long_prefill_token_threshold={served.long_prefill_token_threshold}"
        )
    tool = None if reading.columns else tool_of(names)
    if tool not in OF_TRACES and (tool or not blocks_in(names, reading)):
        trace = trace_of(run)
    else:
        trace = read_trace(path, reading=without_measured(reading))
        if len(trace) == len(run.requests):
            run = dataclasses.replace(run, prefixes=prompts_of(trace))
    rows = np.flatnonzero(within_limits(trace, max_prompt_tokens, max_total_tokens))[:requests]
    if not len(rows):
        raise WorkloadError(f"{path.name} has no requests within the token limits")
    return Recording(trace.take(rows), run, (*run.notes, *notes_of(trace)))


def notes_of(trace: Trace) -> tuple[str, ...]:
    return tuple(trace.provenance.get("notes", ()))


def blocks_in(names: list[str], reading: Reading) -> bool:
    """Whether a file has prefix blocks."""
    return "prefix_blocks" in (*names, *reading.names)


def without_measured(reading: Reading) -> Reading:
    """The reading without the columns that say how requests were served, which a trace has not."""
    columns = tuple((name, column) for name, column in reading.names.items() if name not in MEASURED and column != NONE)
    return dataclasses.replace(reading, columns=columns)


def without_failed(run: Run) -> Run:
    """The run without its failed requests where these are few, and a note. With many it is overloaded, and stays."""
    failed = run.requests["failed"].to_numpy()
    if not 0 < failed.mean() <= MOST_FAILED:
        return run
    rows = np.flatnonzero(~failed)
    prefixes = None if run.prefixes is None else run.prefixes.take(rows)
    requests = run.requests.iloc[rows].reset_index(drop=True)
    note = f"{int(failed.sum())} requests that failed are left out"
    return dataclasses.replace(run, requests=requests, prefixes=prefixes, notes=(*run.notes, note))


def trace_of(run: Run) -> Trace:
    """The requests of a measured run, as a trace."""
    table, prompts = run.requests, run.prefixes
    return Trace(
        run.name,
        table["prompt_tokens"].to_numpy("i4"),
        table["output_tokens"].to_numpy("i4"),
        table["arrival_s"].to_numpy("f8"),
        {name: table[name].to_numpy("f8") for name in GIVEN if name in table},
        prefix_blocks=None if prompts is None else PrefixBlocks(prompts.offsets, prompts.chunks, prompts.chunk_tokens),
        provenance={"format": "measured", "rows": len(table)},
    )

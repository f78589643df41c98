"""Loads traces by name: draws the requests of a family, or reads a file and selects requests from it."""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path

import numpy as np

from servegym.errors import WorkloadError, unknown_name
from servegym.traces import servegen
from servegym.traces.distributions import Stream, generator
from servegym.traces.families import FAMILIES, generate
from servegym.traces.reading import Reading
from servegym.traces.resampling import resampled
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import Trace

DEFAULT_REQUESTS = 1000  # of a generated trace
MOST_REQUESTS = 10**8  # some 10 GB in memory, and as much again for their outcomes
# Importing these modules registers their families.
for _families in ("generators", "paper_families", "session_families"):
    importlib.import_module(f"servegym.traces.{_families}")

GOLDEN_RATIO = (5**0.5 - 1) / 2


def trace_names() -> list[str]:
    """List the traces that come with servegym: families of the embedded generators."""
    return FAMILIES.names()


def load_trace(
    trace: str | os.PathLike[str],
    *,
    requests: int | None = None,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
    default_requests: int = DEFAULT_REQUESTS,
    window: int | str = "first",
    tokenizer: Tokenizer | str | None = None,
    resample: bool = False,
    reading: Reading | None = None,
) -> Trace:
    """Draw the requests of a family or of ServeGen's tables by `seed`, or read a file; arguments as in
    `build_workload`.

    default_requests: the number to draw if `requests` is None. Raises WorkloadError.
    """
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise WorkloadError(f"{requests} requests: a workload has at least 1, and at most {MOST_REQUESTS:,}")
    drawn = default_requests if requests is None else requests
    limits = {"max_prompt_tokens": max_prompt_tokens, "max_total_tokens": max_total_tokens}
    if resample:
        _check_resampled(trace, window)
    if reading is not None and reading.options and _is_generated(trace):
        raise WorkloadError(f"{reading.options}: for files of requests, and those of {Path(trace).name} are generated")
    if isinstance(trace, str) and trace in FAMILIES:
        return generate(trace, drawn, seed=seed, **limits)
    if not Path(trace).exists() and not Path(trace).suffix:
        raise WorkloadError(unknown_name("trace", str(trace), trace_names()) + "; or a file")
    if servegen.is_rate_table(Path(trace)):
        tables = servegen.read_tables(Path(trace))
        start = window_start(window, seed, len(tables.windows_s), 1)
        return servegen.generate(tables, drawn, seed=seed, first_window=start, **limits)
    from servegym.traces.readers import read_trace  # imported late: the readers of all formats

    loaded = read_trace(trace, tokenizer, reading)
    keep = within_limits(loaded, max_prompt_tokens, max_total_tokens)
    rows = np.flatnonzero(keep if loaded.turns is None else loaded.turns.whole(keep))
    if resample and len(rows):
        rng = generator(seed, Stream.BLOCKS)
        return resampled(loaded.take(rows), requests or len(rows), rng)
    if len(rows) < (requests or 1):
        raise WorkloadError(
            f"{loaded.name} has {len(rows)} requests"
            + (f" within the token limits, of {len(loaded)}" if len(rows) < len(loaded) else "")
            + (f"; requests (--requests, or of the spec) is {requests}" if requests else "; it should have some")
        )
    start = window_start(window, seed, len(rows), requests or len(rows))
    if loaded.turns is not None:  # a window of sessions begins with the last session at or before its start
        start = int(np.flatnonzero(loaded.begins[rows[: start + 1]])[-1])
    rows = rows[start : start + (requests or len(rows))]
    taken = loaded.take(rows) if len(rows) < len(loaded) else loaded
    if start and taken.arrival_s is not None:  # a later window starts its own clock
        taken = dataclasses.replace(taken, arrival_s=taken.arrival_s - taken.arrival_s[0])
    return dataclasses.replace(taken, provenance={**taken.provenance, "first_request": int(start)})


def requests_in(
    trace: str | os.PathLike[str],
    *,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
    reading: Reading | None = None,
) -> int | None:
    """Count the requests of a file within the limits; None for a trace that is drawn, in any number.

    Raises WorkloadError.
    """
    if _is_generated(trace):
        return None
    return len(
        load_trace(trace, max_prompt_tokens=max_prompt_tokens, max_total_tokens=max_total_tokens, reading=reading)
    )


def _is_generated(trace: str | os.PathLike[str]) -> bool:
    return (isinstance(trace, str) and trace in FAMILIES) or servegen.is_rate_table(Path(trace))


def _check_resampled(trace: str | os.PathLike[str], window: int | str) -> None:
    if _is_generated(trace):
        raise WorkloadError(f"trace '{trace}' is generated, so every seed has other requests; leave resample out")
    if window not in ("first", "seed"):
        raise WorkloadError(f"a window that starts at {window} and resampling exclude each other; give one of them")


def window_start(window: int | str, seed: int, length: int, size: int) -> int:
    """Return the index of the first of `size` consecutive items out of `length`, without wrapping around.

    window: "first" (0), "seed", or the index itself. With "seed", the start is the fractional part of seed times the
    golden ratio, so that the windows of any number of seeds are spread evenly and overlap little. Seed 0 gives 0.
    Raises WorkloadError for an unknown window, or one that reaches beyond the end.
    """
    room = max(length - size, 0)
    if window == "first":
        return 0
    if window == "seed":
        return int(seed * GOLDEN_RATIO % 1 * (room + 1))
    if isinstance(window, str):
        if not window.isdecimal():
            raise WorkloadError(f"a window of '{window}'; it should be first, seed or a whole number of 0 or more")
        window = int(window)
    if not 0 <= window <= room:
        raise WorkloadError(f"a window that starts at {window}: with {size} of {length} it starts at 0 to {room}")
    return window


def within_limits(trace: Trace, max_prompt_tokens: int | None, max_total_tokens: int | None) -> np.ndarray:
    """Whether each request is within the limits, bool of shape (requests,)."""
    keep = np.ones(len(trace), bool)
    if max_prompt_tokens is not None:
        keep &= trace.prompt_tokens <= max_prompt_tokens
    if max_total_tokens is not None:
        keep &= trace.prompt_tokens + trace.output_tokens <= max_total_tokens
    return keep

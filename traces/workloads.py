"""The main entry: from a trace's name, a rate and a recipe to the workload a simulator serves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import Workload
from servegym.traces.arrivals import arrivals_of, checked_rate
from servegym.traces.distributions import Stream, generator
from servegym.traces.loading import load_trace, trace_names
from servegym.traces.own_slos import recipe_of, with_own_first
from servegym.traces.prefixes import prompts_of
from servegym.traces.reading import Reading
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import Trace

__all__ = [
    "build_trace",
    "build_workload",
    "load_trace",
    "trace_names",
    "with_adapters",
    "workload_notes",
    "workload_of_trace",
]

NOTES = {"notes": "Trace", "slo_notes": "SLOs"}  # of a workload's provenance, and how they are printed


def workload_notes(provenance: Mapping[str, Any]) -> list[str]:
    """Return the repairs to a trace and the changes of a recipe, in words, from the provenance of a workload."""
    return [f"{what}: {note}" for name, what in NOTES.items() for note in provenance.get(name, ())]


def build_workload(
    trace: str | os.PathLike[str],
    *,
    requests: int | None = None,
    rate_per_s: float | None = None,
    slo: str = "proserve",
    arrivals: str | None = None,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
    window: int | str = "first",
    idle_tpot_s: float | None = None,
    tokenizer: Tokenizer | str | None = None,
    alone: bool = False,
    resample: bool = False,
    reading: Reading | None = None,
) -> Workload:
    """Make a workload from a trace, at a rate, with a recipe's SLOs.

    trace: a name of `trace_names()`, or a file `read_trace` reads, or ServeGen's tables.
    requests: how many; of a file in a row (default: all), or as many drawn (default: 1000).
    rate_per_s: mean arrival rate. A file's own times are stretched to it, from 0 (ProServe's scaling);
        where there are no times it is needed, and arrivals are drawn.
    slo: a recipe of `RECIPES`, maybe with parameters ("qoserve:low_share=0.2"), or SLOs for all
        ("ttft_s=2,tpot_s=0.06"); columns the trace has itself win over the recipe's.
    arrivals: a process of `ARRIVALS`, maybe with parameters ("gamma:cv=4") (default: "own" where the trace has
        times, else "poisson").
    seed: gives independent streams for lengths, arrivals and priorities. One seed has the same lengths and
        priorities at every rate, and the same arrivals except for their scale.
    max_prompt_tokens, max_total_tokens: requests with a longer prompt, or prompt and output, are left out
        (what a model's context length does); a family draws others in their place.
    window: which of a file's requests: "first", "seed" (every seed others, in a row, evenly over the file) or
        the number of the first one, from 0. Families draw by the seed anyway.
    idle_tpot_s: time between tokens of a request alone on the device: recipes give no SLO it cannot meet with
        ease, and say so in the provenance (`slo_notes`). None: SLOs as the papers have them.
    tokenizer: for a file of texts: "characters/4", or a function from text to tokens or their number.
    alone: each request by itself, also where the trace has sessions.
    resample: draw the requests of a file anew, as many as are asked for, in blocks of its own time (resampling.py):
        every seed others.
    reading: of a file: which of its columns is what, the unit of its times, what is to be put right (`Reading`).

    Where the trace says which prompts begin alike (`prefix_blocks`) the workload does too (`Workload.prefixes`).

    Raises WorkloadError if the arguments give no workload.
    """
    loaded = load_trace(
        trace,
        requests=requests,
        seed=seed,
        max_prompt_tokens=max_prompt_tokens,
        max_total_tokens=max_total_tokens,
        window=window,
        tokenizer=tokenizer,
        resample=resample,
        reading=reading,
    )
    if alone:
        loaded = loaded.alone()
    built = build_trace(loaded, rate_per_s=rate_per_s, slo=slo, arrivals=arrivals, seed=seed, idle_tpot_s=idle_tpot_s)
    return workload_of_trace(
        built.noted(max_prompt_tokens=max_prompt_tokens, max_total_tokens=max_total_tokens, window=window)
    )


def workload_of_trace(built: Trace) -> Workload:
    """Make the workload of a trace that has arrivals and a recipe's columns (`build_trace`). Raises WorkloadError."""
    if (
        built.turns is not None and built.arrival_s is not None
    ):  # sessions in a row become requests in order of arrival, and after them the turns
        built = built.take(built.turns.order(built.arrival_s))
    workload = Workload.from_columns(
        {
            **built.given,
            "arrival_s": built.arrival_s,
            "prompt_tokens": built.prompt_tokens,
            "output_tokens": built.output_tokens,
        },
        name=built.name,
        provenance=built.provenance,
        turns=built.turns,
    )
    return dataclasses.replace(workload, prefixes=prompts_of(built), ids=built.ids)


def with_adapters(workload: Workload, adapters: int, skew: float, rng: np.random.Generator) -> Workload:
    """Copy the workload with LoRA adapters 1, 2, ... drawn by Zipf's law: the k-th has a share proportional to k^-skew.

    All requests of a session have one adapter.
    """
    shares = np.arange(1, adapters + 1) ** -float(skew)
    drawn = 1 + rng.choice(adapters, len(workload), p=shares / shares.sum())
    return workload.replace(adapter=drawn if workload.turns is None else drawn[workload.turns.session])


def build_trace(
    trace: Trace,
    *,
    rate_per_s: float | None = None,
    slo: str = "given",
    arrivals: str | None = None,
    seed: int = 0,
    idle_tpot_s: float | None = None,
) -> Trace:
    """Make a trace with arrivals and a recipe's columns: all that a workload has, labels and prefix blocks kept.

    Arguments as `build_workload`. Raises WorkloadError.
    """
    if rate_per_s is not None:
        checked_rate(rate_per_s, "arrivals")
    recipe = recipe_of(slo, idle_tpot_s=idle_tpot_s)
    assignment = with_own_first(trace, recipe(trace, generator(seed, Stream.RECIPE)), slo)
    process = arrivals or ("poisson" if trace.arrival_s is None else "own")
    rng = generator(seed, Stream.ARRIVALS)
    try:
        arrival_s = _arrivals(trace, process, rate_per_s, rng)
    except WorkloadError as error:
        raise WorkloadError(f"trace '{trace.name}': {error}") from None
    return dataclasses.replace(
        trace,
        arrival_s=arrival_s,
        given={
            **{field: np.broadcast_to(column, len(trace)) for field, column in assignment.columns.items()},
            **trace.given,
        },
        provenance={
            **trace.provenance,
            "slo": slo,
            "slo_notes": list(assignment.notes),
            "idle_tpot_s": idle_tpot_s,
            "seed": seed,
            "arrivals": process,
            "rate_per_s": rate_per_s,
        },
    )


def _arrivals(trace: Trace, process: str, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """float64[requests], s. Of sessions when they begin, NaN for those that follow; rate_per_s: of all requests."""
    begin = np.flatnonzero(trace.begins)
    first = trace if trace.turns is None else trace.take(begin)
    if rate_per_s is not None and trace.turns is not None:
        rate_per_s = rate_per_s * len(begin) / len(trace)
    arrival_s = np.full(len(trace), np.nan)
    arrival_s[begin] = arrivals_of(process, first, rate_per_s, rng)
    return arrival_s

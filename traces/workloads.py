"""The front door: from the name of a trace, a rate and a recipe to the workload a simulator serves."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from servegym.simulator.errors import WorkloadError
from servegym.simulator.workload import Workload
from servegym.traces import randomness
from servegym.traces.arrivals import ARRIVALS, checked_rate
from servegym.traces.generators import families, generate
from servegym.traces.readers import read_trace
from servegym.traces.recipes import RECIPES
from servegym.traces.registry import unknown_name
from servegym.traces.trace import Trace

DEFAULT_REQUESTS = 1000  # of a generated trace


def trace_names() -> list[str]:
    """The traces that come with servegym: families of the embedded generator."""
    return families()


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
) -> Workload:
    """A workload from a trace, at a rate, with a recipe's SLOs.

    trace: a name of `trace_names()`, or a file `read_trace` reads.
    requests: how many; the first ones of a file (default: all), or as many drawn (default: 1000).
    rate_per_s: mean arrival rate. A file's own times are stretched to it, from 0 (ProServe's scaling);
        where there are no times it is needed, and arrivals are drawn.
    slo: a recipe of `RECIPES`; columns the file has itself win over the recipe's.
    arrivals: a process of `ARRIVALS` to draw arrivals from, in place of a file's own times
        (default: the file's own, else "poisson").
    seed: lengths, arrivals and priorities are independent streams of it: one seed has the same lengths and
        priorities at every rate, and the same arrivals but for their scale.
    max_prompt_tokens, max_total_tokens: requests with a longer prompt, or prompt and output, are left out
        (what a model's context length does); a family draws others in their place.

    Raises WorkloadError for anything that does not make a workload.
    """
    if requests is not None and requests < 1:
        raise WorkloadError(f"{requests} requests: a workload has at least 1")
    if rate_per_s is not None:
        checked_rate(rate_per_s, "arrivals")
    loaded = load_trace(
        trace,
        requests=requests,
        seed=seed,
        max_prompt_tokens=max_prompt_tokens,
        max_total_tokens=max_total_tokens,
    )
    recipe = RECIPES[slo](loaded, randomness.generator(seed, randomness.Stream.RECIPE))
    drawn = arrivals if arrivals is not None else "poisson" if loaded.arrival_s is None else None
    arrival_s = loaded.arrival_s
    if drawn is not None:
        if rate_per_s is None and drawn != "at-once":
            checked_rate(None, f"trace '{loaded.name}': {drawn} arrivals")
        arrival_s = ARRIVALS[drawn](
            len(loaded), rate_per_s, randomness.generator(seed, randomness.Stream.ARRIVALS)
        )
    workload = Workload.from_columns(
        {
            **recipe,
            **loaded.given,
            "arrival_s": arrival_s,
            "prompt_tokens": loaded.prompt_tokens,
            "output_tokens": loaded.output_tokens,
        },
        name=loaded.name,
        provenance={
            **loaded.provenance,
            "slo": slo,
            "seed": seed,
            "arrivals": drawn or "the trace's own",
            "rate_per_s": rate_per_s,
            "max_prompt_tokens": max_prompt_tokens,
            "max_total_tokens": max_total_tokens,
        },
    )
    return workload if drawn is not None or rate_per_s is None else workload.at_rate(rate_per_s)


def load_trace(
    trace: str | os.PathLike[str],
    *,
    requests: int | None = None,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
    default_requests: int = DEFAULT_REQUESTS,
) -> Trace:
    """The requests of a family (drawn by `seed`) or of a file, as `build_workload` takes them.

    default_requests: how many are drawn of a family where `requests` does not say.
    """
    if isinstance(trace, str) and trace in families():
        return generate(
            trace,
            default_requests if requests is None else requests,
            seed=seed,
            max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=max_total_tokens,
        )
    if not Path(trace).exists() and not Path(trace).suffix:
        raise WorkloadError(unknown_name("trace", str(trace), families()) + "; or a file")
    loaded = read_trace(trace)
    keep = np.ones(len(loaded), bool)
    if max_prompt_tokens is not None:
        keep &= loaded.prompt_tokens <= max_prompt_tokens
    if max_total_tokens is not None:
        keep &= loaded.prompt_tokens + loaded.output_tokens <= max_total_tokens
    rows = np.flatnonzero(keep)
    if len(rows) < (requests or 1):
        raise WorkloadError(
            f"{loaded.name} has {len(rows)} requests"
            + (f" within the token limits, of {len(loaded)}" if len(rows) < len(loaded) else "")
            + f"; {requests or 1} are asked for"
        )
    return loaded.take(rows[:requests]) if len(rows[:requests]) < len(loaded) else loaded

"""A lower bound of the engines that any scheduler and router need: required work divided by available time."""

from __future__ import annotations

import math

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.bounds.least_work import LeastWork, Line, least_work
from servegym.evaluation.recommend.trials import judged_arrivals
from servegym.evaluation.targets import ATTAINED, VIOLATIONS, Target
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload


def least_engines(workload: Workload, engine: Deployment, target: Target) -> int | None:
    """The least number of engines that can hold the target on a workload under any policy; None: no bound is known.

    As many of the judged requests as the target asks for have to be served between their first arrival and the last of
    their deadlines. Their work is at least that of the requests with the least work (`least_work`), without cached
    prompt tokens, and with decodes whose context does not grow.
    """
    if workload.turns is not None or engine.speculation is not None:
        return None
    latency = None if target.quantile is None else target.quantile.latency
    if latency == "tpot":
        return None  # it may come whenever
    try:
        work = least_work([engine])
    except ExperimentError:
        return None
    rows = np.flatnonzero(judged_arrivals(workload.table["arrival_s"], workload.known))
    table, span_s = workload.table[rows], _span_s(workload.table[rows], target)
    if not 0 < span_s < math.inf:
        return None
    most_failed = math.floor(target.most_failed * len(table) + 1e-9)
    seconds = (
        np.sort(_least_s(work, line, table, new_tokens(workload)[rows], latency == "ttft"))
        for line in work.without_constants
    )
    least_s = max((float(of_line[: len(table) - most_failed].sum()) for of_line in seconds), default=0.0)
    return max(1, math.ceil(least_s / span_s - 1e-9))


def new_tokens(workload: Workload) -> np.ndarray:
    """int64[requests]: prompt tokens that no earlier prompt begins with, which have to be computed."""
    tokens = workload.table["prompt_tokens"].astype("i8")
    if workload.prefixes is None:
        return tokens
    offsets, chunks = workload.prefixes.of_prompts(tokens)
    first = np.zeros(len(chunks), bool)
    first[np.unique(chunks, return_index=True)[1]] = True
    seen = np.concatenate([[0], np.cumsum(~first)])
    found: np.ndarray = tokens - (seen[offsets[1:]] - seen[offsets[:-1]]) * workload.prefixes.chunk_tokens
    return found


def _least_s(work: LeastWork, line: Line, table: np.ndarray, new: np.ndarray, first_only: bool) -> np.ndarray:
    """float64[requests]: the least time of each on an engine, of its first token only or of all."""
    prompt = table["prompt_tokens"].astype("f8")
    seconds = line.prefill_s * new + np.where(new == prompt, work.prompt_attention_s(prompt), 0.0)
    if first_only:
        return seconds
    return seconds + (table["output_tokens"] - 1) * work.later_token_s(line, prompt)


def _span_s(table: np.ndarray, target: Target) -> float:
    """The time from the first arrival to the last deadline."""
    if target.measure in (ATTAINED, VIOLATIONS):
        streamed = table["ttft_slo_s"] + (table["output_tokens"] - 1) * table["tpot_slo_s"]
        allowed_s = np.where(np.isfinite(table["ttlt_slo_s"]), table["ttlt_slo_s"], streamed)
    else:
        allowed_s = np.full(len(table), target.bound)
    return float((table["arrival_s"] + allowed_s).max() - table["arrival_s"].min())

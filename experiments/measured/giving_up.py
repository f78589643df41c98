"""Clients that give up: a request that has not ended after a time is cancelled, and the engine goes on without it.

The simulator has no cancelling, so a run is simulated again and again, and cut as time goes on. A request that has not
begun when its client gives up is left out from the start: in a queue in order of arrival it delays nobody before that.
One that runs ends with the tokens it has by then. What clients give up on within STEP_S is cut together.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured.profiles import profile_of
from experiments.measured.study import of_version
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import METRICS
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import simulated

STEP_S = 10.0
HEAD = """**With clients that give up** after 300 s (`giving_up.py`, else the headline): how many requests, and which is
the first; errors of means, %, of requests that ended in both; output tokens a second of those that ended.
"""
COLUMNS = (
    "run", "given up", "simulated", "from request", "simulated", "E2E / ITL / TTFT, %", "tokens/s, %",
)  # fmt: skip
Serve = Callable[[Run], "pd.DataFrame"]  # ttft_s, itl_s, e2e_s of each request, as `serving.simulated` gives them


def with_giving_up(run: Run, serve: Serve, step_s: float = STEP_S) -> pd.DataFrame:
    """As `serve`, with clients that give up after `run.timeout_s`: their requests have no times (nan)."""
    arrival_s = run.requests["arrival_s"].to_numpy()
    ends_s = arrival_s + run.timeout_s
    tokens = run.requests["output_tokens"].to_numpy().copy()
    given_up, kept = np.zeros(len(tokens), bool), np.ones(len(tokens), bool)
    found = _served(run, serve, tokens, kept)
    if not (found["e2e_s"] > run.timeout_s).any():
        return found.assign(given_up=given_up)
    for until_s in np.arange(ends_s[0] + step_s, ends_s[-1] + step_s, step_s):  # clients have given up so far
        found = _served(run, serve, tokens, kept & (arrival_s <= until_s))
        now = (found["e2e_s"].to_numpy() > run.timeout_s) & ~given_up & (ends_s <= until_s)
        emitted = _emitted(found, run.timeout_s)
        tokens[now] = emitted[now]
        kept[now & (emitted < 1)] = False
        given_up |= now
    found = _served(run, serve, np.maximum(tokens, 1), kept)
    found.loc[given_up, ["ttft_s", "itl_s", "e2e_s"]] = np.nan
    return found.assign(given_up=given_up)


def _served(run: Run, serve: Serve, tokens: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
    """The chosen requests served with so many tokens each; the others have no times."""
    part = dataclasses.replace(
        run,
        requests=run.requests.assign(output_tokens=tokens)[chosen],
        prefixes=None if run.prefixes is None else run.prefixes.take(np.flatnonzero(chosen)),
    )
    served = serve(part)
    return served.set_axis(np.flatnonzero(chosen)).reindex(np.arange(len(tokens)))


def _emitted(found: pd.DataFrame, timeout_s: float) -> np.ndarray:
    """Tokens of each request that its client has when it gives up, by its mean time between tokens."""
    after_s = timeout_s - found["ttft_s"].to_numpy()
    more = np.nan_to_num(after_s / found["itl_s"].to_numpy())
    return np.where(after_s >= 0, 1 + more.clip(0).astype(np.int64), 0)


def section(runs: Iterable[Run], folder: Path) -> str:
    """The part of the page: runs in which clients gave up, headline, with clients that give up."""
    rows = []
    for run in runs:
        profile, terms = profile_of(run, folder), of_version(run)
        found = with_giving_up(run, lambda part, of=profile, terms=terms: simulated(part, of, terms))  # type: ignore[misc]
        failed, given_up = run.requests["failed"].to_numpy(), found["given_up"].to_numpy()
        means = {
            metric: 100 * (found[f"{metric}_s"][~failed].mean() / run.requests[f"{metric}_s"][~failed].mean() - 1)
            for metric in METRICS
        }
        served = (tokens_per_s(run, run.requests, ~failed), tokens_per_s(run, found, ~given_up))
        rows.append([
            run.name, *(f"{one.sum():,}" for one in (failed, given_up)), *(_first(one) for one in (failed, given_up)),
            " / ".join(f"{error:+.1f}" for error in means.values()), f"{100 * (served[1] / served[0] - 1):+.1f}",
        ])  # fmt: skip
    return f"{HEAD}\n{table(COLUMNS, rows)}"


def tokens_per_s(run: Run, requests: pd.DataFrame, ended: np.ndarray) -> float:
    """Output tokens a second of the requests that ended, from the first arrival to their last token."""
    ends_s = run.requests["arrival_s"].to_numpy()[ended] + requests["e2e_s"].to_numpy()[ended]
    return float(run.requests["output_tokens"].to_numpy()[ended].sum() / ends_s.max())


def _first(given_up: np.ndarray) -> str:
    return f"{np.flatnonzero(given_up)[0] + 1:,}" if given_up.any() else "-"

"""The client's side of an HTTP server: one number, seconds between a client and the queue, fitted to other models.

It comes on top of what was simulated without it, so nothing is simulated again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import METRICS, means_of
from servegym.evaluation.measured.fitting import FAR, NOISE, PRIOR
from servegym.evaluation.measured.runs import Run

PRIOR_S = float(PRIOR[2])
MOST_S = 10 * PRIOR_S
Served = tuple[Run, "pd.DataFrame"]  # a run over HTTP, and its requests as simulated without the client's side


@dataclass(frozen=True, eq=False)
class Judged:
    """A run with what was fitted to those of all other models; errors of its means: signed, percent."""

    run: Run
    client_s: float
    before: Mapping[str, float]
    after: Mapping[str, float]


def with_side(means: Mapping[str, float], client_s: float) -> dict[str, float]:
    """Means of E2E, ITL and TTFT with so much more between a client and the queue."""
    return {metric: mean + (client_s if metric != "itl" else 0.0) for metric, mean in means.items()}


def fit(served: Sequence[Served]) -> float:
    """Seconds with which the means of these runs, stage by stage, come nearest: as `fitting.fit`, this term alone."""
    from scipy.optimize import minimize_scalar

    pairs = [
        (means_of(run.requests, run, stage), means_of(requests, run, stage))
        for run, requests in served
        for stage in run.stages[1:] or run.stages
    ]

    def cost(client_s: float) -> float:
        errors = [
            np.log(mean / measured[metric]) / NOISE / FAR
            for measured, found in pairs
            for metric, mean in with_side(found, client_s).items()
        ]
        return float(FAR**2 * sum(np.sqrt(1 + error**2) - 1 for error in errors) + (client_s / PRIOR_S) ** 2 / 2)

    return float(minimize_scalar(cost, bounds=(0.0, MOST_S), method="bounded", options={"xatol": 1e-6}).x)


def study(served: Sequence[Served]) -> list[Judged]:
    """Each run over HTTP, judged by what was fitted to the runs of all other models that no client gave up on."""
    over_http, judged = [one for one in served if one[0].over_http], []
    fits: dict[str, float] = {}
    for run, requests in over_http:
        if run.model not in fits:
            fits[run.model] = fit([one for one in over_http if one[0].model != run.model and not one[0].overloaded])
        measured, found = means_of(run.requests, run), means_of(requests, run)
        before, after = (
            {metric: 100 * (means[metric] / measured[metric] - 1) for metric in METRICS}
            for means in (found, with_side(found, fits[run.model]))
        )
        judged.append(Judged(run, fits[run.model], before, after))
    return judged


HEAD = """## The client's side, fitted to other models

One number for each model, seconds between a client and the queue of an HTTP server: fitted to the means of all runs of
the *other* models that no client gave up on (`client_side.py`), from a prior of 0 ± 10 ms. Batch times stay those of
the tables. Signed errors of means, % (E2E / ITL / TTFT); *: clients gave up.
"""


def section(judged: Sequence[Judged]) -> str:
    """The part of the page."""
    rows = [
        [one.run.name + "*" * one.run.overloaded, f"{1e3 * one.client_s:.1f}", _three(one.before), _three(one.after)]
        for one in judged
    ]
    return f"{HEAD}\n{table(('run', 'fitted to others, ms', 'without', 'with it'), rows)}"


def _three(errors: Mapping[str, float]) -> str:
    return " / ".join(f"{errors[metric]:+.1f}" for metric in METRICS)

"""CPU time of a step for each request in it: fitted to closed loops of some models or GPUs, judged on the others.

Synchronous engines only: with asynchronous scheduling the CPU works while the device does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from servegym.evaluation.markdown import table
from servegym.evaluation.measured.closed_loops import Loop
from servegym.evaluation.measured.closed_study import CASES, figures_of, profile_of, served, terms_of
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.fitting import FAR, NOISE

GRID_S = (0.0, 2e-5, 4e-5, 6e-5, 8e-5, 12e-5)  # a request; between them TPOT is interpolated, for the fit alone
LEFT_OUT = {"model": lambda loop: loop.model, "GPU": lambda loop: loop.gpu}


@dataclass(frozen=True)
class Judged:
    """A point: signed errors in percent, with nothing and with so much CPU time a request, fitted without `left`."""

    loop: Loop
    by: str
    left: str
    request_s: float
    before: dict[str, float]
    after: dict[str, float]


def with_request_s(loop: Loop, request_s: float) -> EngineTerms:
    return dataclasses.replace(terms_of(loop), step_cpu_per_request_s=request_s)


class Points:
    """Synchronous points, each simulated at most once with a time a request."""

    def __init__(self, loops: Iterable[Loop], folder: Path):
        self.loops = [loop for loop in loops if not loop.asynchronous]
        self.folder = folder

    @functools.cache  # noqa: B019
    def figures(self, loop: Loop, request_s: float) -> dict[str, float]:
        """ttft and tpot, s."""
        terms = with_request_s(loop, request_s)
        requests = served(loop, profile_of(loop, self.folder), terms.of_steps)
        return figures_of(requests, loop, dataclasses.replace(CASES[0], terms=lambda _: terms))

    def errors(self, loop: Loop, request_s: float) -> dict[str, float]:
        """Signed, percent."""
        found = self.figures(loop, request_s)
        return {"ttft": 100 * (found["ttft"] / loop.ttft_s - 1), "tpot": 100 * (found["tpot"] / loop.tpot_s - 1)}

    def fit(self, loops: Sequence[Loop]) -> float:
        """Seconds a request with which TPOT of these points comes nearest: logarithms, squares that far off are soft.

        What no time of the CPU explains counts little (`fitting.FAR`).
        """
        from scipy.optimize import minimize_scalar

        logs = np.array([[np.log(self.figures(loop, one)["tpot"] / loop.tpot_s) for one in GRID_S] for loop in loops])

        def cost(request_s: float) -> float:
            residuals = [np.interp(request_s, GRID_S, row) / NOISE / FAR for row in logs]
            return float(sum(np.sqrt(1 + residual**2) - 1 for residual in residuals))

        return float(minimize_scalar(cost, bounds=(0.0, GRID_S[-1]), method="bounded").x)


def study(points: Points) -> list[Judged]:
    """Each point under what was fitted to those of all other models, and to those of the other GPU."""
    judged = []
    for by, kind in LEFT_OUT.items():
        for left in dict.fromkeys(kind(loop) for loop in points.loops):
            request_s = points.fit([loop for loop in points.loops if kind(loop) != left])
            judged += [
                Judged(loop, by, left, request_s, points.errors(loop, 0.0), points.errors(loop, request_s))
                for loop in points.loops
                if kind(loop) == left
            ]
    return judged


def medians(judged: Iterable[Judged], when: str, metric: str) -> float:
    return float(np.median([abs(getattr(one, when)[metric]) for one in judged]))


HEAD = """**CPU time of a step for each request in it** (`step_cpu_per_request_s`), one number beside the 0.9 ms of
every step, fitted to the synchronous points of all models but one, or of the other GPU, and judged on what was left
out. Median absolute errors, %.
"""


def section(judged: Sequence[Judged], of_all_s: float) -> str:
    """The part of the page. of_all_s: fitted to all points, for engines that are none of them."""
    rows = []
    for by in LEFT_OUT:
        part = [one for one in judged if one.by == by]
        for left in [*dict.fromkeys(one.left for one in part), "all"]:
            some = [one for one in part if left in (one.left, "all")]
            fitted = "" if left == "all" else f"{1e6 * some[0].request_s:.0f}"
            figures = (
                f"{medians(some, when, metric):.1f}" for metric in ("tpot", "ttft") for when in ("before", "after")
            )
            rows.append([f"{by}: {left.split('/')[-1]}", str(len(some)), fitted, *figures])
    heads = ("left out, and judged", "points", "us a request", "TPOT without", "TPOT with", "TTFT without", "TTFT with")
    return f"{HEAD}\n{table(heads, rows)}\nFitted to all of them: {1e6 * of_all_s:.0f} us.\n"

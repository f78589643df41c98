"""CPU time of a step for each request in it: fitted to closed loops of some models or GPUs, judged on the others.

Synchronous engines only: with asynchronous scheduling the CPU works while the device does.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.measured.closed_loops import Loop
from experiments.measured.closed_study import CASES, figures_of, profile_of, served, terms_of
from experiments.measured.known_terms import step_terms
from experiments.measured.wrong_closed_terms import paragraph
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.fitting import FAR, NOISE
from servegym.latency_models.profile import Profile

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


def simulated(loop: Loop, profile: Profile, request_s: float) -> dict[str, float]:
    """ttft and tpot of a point with so much CPU time a request, s."""
    terms = with_request_s(loop, request_s)
    case = dataclasses.replace(CASES[0], terms=lambda _: terms)
    return figures_of(served(loop, profile, step_terms(terms)), loop, case)


class Points:
    """Synchronous points, each simulated at most once with a time a request."""

    def __init__(self, loops: Iterable[Loop], folder: Path):
        self.loops = [loop for loop in loops if not loop.asynchronous]
        self.folder = folder

    @functools.cache  # noqa: B019
    def figures(self, loop: Loop, request_s: float) -> dict[str, float]:
        """ttft and tpot, s."""
        return simulated(loop, profile_of(loop, self.folder), request_s)

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


@dataclass(frozen=True)
class Outcome:
    """judged: each point without its model, and without its GPU. pairs: (fitted to a model, judged on another, seconds,
    median absolute error of TPOT before and after, percent). of_all_s: fitted to all points, for other engines."""

    judged: list[Judged]
    pairs: list[tuple[str, str, float, float, float]]
    of_all_s: float


def study(points: Points) -> Outcome:
    """Each point under what was fitted to those of all other models, and of the other GPU; and model by model."""
    judged = []
    for by, kind in LEFT_OUT.items():
        for left in dict.fromkeys(kind(loop) for loop in points.loops):
            request_s = points.fit([loop for loop in points.loops if kind(loop) != left])
            judged += [
                Judged(loop, by, left, request_s, points.errors(loop, 0.0), points.errors(loop, request_s))
                for loop in points.loops
                if kind(loop) == left
            ]
    models = list(dict.fromkeys(loop.model for loop in points.loops))
    pairs = []
    for fitted, other in itertools.permutations(models, 2):
        request_s = points.fit([loop for loop in points.loops if loop.model == fitted])
        some = [loop for loop in points.loops if loop.model == other]
        before, after = (
            np.median([abs(points.errors(loop, one)["tpot"]) for loop in some]) for one in (0.0, request_s)
        )
        pairs.append((fitted, other, request_s, float(before), float(after)))
    return Outcome(judged, pairs, points.fit(points.loops))


def medians(judged: Iterable[Judged], when: str, metric: str) -> float:
    return float(np.median([abs(getattr(one, when)[metric]) for one in judged]))


HEAD = """**CPU time of a step for each request in it** (`step_cpu_per_request_s`), one number beside the 0.9 ms of
every step, fitted to the synchronous points of all models but one, or of the other GPU, and judged on what was left
out. Median absolute errors, %.
"""


READING = """Fitted to all {points} of them: {us:.0f} us; that is what the case *CPU by request* of
[measured](measured.md#each-assumption-changed-alone) takes. The two Qwen3 bring each other nearer,
though one asks for about twice the time that the other does. Llama-3.1-8B's points are too slow in the
simulation already (its prompts seem not all to have been computed, below): they pull the number down,
and any number makes them worse. The headline has no such term.
"""


def section(cpu: Outcome) -> str:
    """The part of the page."""
    rows = []
    for by in LEFT_OUT:
        part = [one for one in cpu.judged if one.by == by]
        for left in [*dict.fromkeys(one.left for one in part), "all"]:
            some = [one for one in part if left in (one.left, "all")]
            fitted = "" if left == "all" else f"{1e6 * some[0].request_s:.0f}"
            pairs = [(metric, when) for metric in ("tpot", "ttft") for when in ("before", "after")]
            figures = [f"{medians(some, when, metric):.1f}" for metric, when in pairs]
            rows.append([f"{by}: {left.split('/')[-1]}", str(len(some)), fitted, *figures])
    heads = ("left out, and judged", "points", "us a request", "TPOT without", "TPOT with", "TTFT without", "TTFT with")
    by_pairs = [
        [fitted.split("/")[-1], f"{1e6 * request_s:.0f}", other.split("/")[-1], f"{before:.1f}", f"{after:.1f}"]
        for fitted, other, request_s, before, after in cpu.pairs
    ]
    points = len([one for one in cpu.judged if one.by == "model"])
    reading = paragraph(READING, points=points, us=1e6 * cpu.of_all_s)
    pair_heads = ("fitted to", "us a request", "judged on", "TPOT without", "TPOT with")
    return f"{HEAD}\n{table(heads, rows)}\n{table(pair_heads, by_pairs)}\n{reading}"

"""Fits terms of the engine to a recording, and measures the errors of its simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from servegym.errors import WorkloadError
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import figures_of
from servegym.evaluation.measured.fitting import Fitted, fit_with_spread
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import simulated
from servegym.latency_models.profile import Profile

METRICS, STATISTICS = {"ttft": "TTFT", "itl": "TPOT", "e2e": "E2E"}, ("p50", "p90")
TERMS = {
    "factor": "the time of every batch", "step_cpu_s": "CPU time of a step", "client_s": "the way from client to queue",
}  # fmt: skip
KNOWN = 0.5  # largest posterior spread, as a share of the prior's, of a term that the recording determines
GOOD_PERCENT = 10.0
ERRS = {
    "ttft": "what comes before a first token: the queue, prefixes found in a cache, the client's side",
    "itl": "the time of a step: the device, the CPU, what else ran beside",
    "e2e": "the time of a step, and what comes before the first token",
}
FIRST, SECOND = 0, 1  # stages: the half that terms are fitted to, and the one that they are judged on
LEAST_FITTED = 40  # requests


class Figure(NamedTuple):
    """A figure of the second half, in seconds: as measured, as simulated with the profile, and after fitting (nan: no
    terms were fitted)."""

    metric: str
    statistic: str
    measured_s: float
    profile_s: float
    fitted_s: float

    @property
    def name(self) -> str:
        return f"{METRICS[self.metric]} {self.statistic}"

    def error_percent(self, fitted: bool) -> float:
        """Signed, of the measured."""
        return 100 * ((self.fitted_s if fitted else self.profile_s) / self.measured_s - 1)


@dataclasses.dataclass(frozen=True)
class Match:
    """figures: of the half that nothing was fitted to. fitted: to the other half; None: `why_not` says why. left:
    posterior standard deviation of each term, as a share of the prior's.
    """

    figures: tuple[Figure, ...]
    fitted: Fitted | None
    left: Mapping[str, float]
    why_not: str = ""

    @property
    def is_fitted(self) -> bool:
        return self.fitted is not None

    @property
    def worst(self) -> Figure:
        """The figure with the largest error of the fitted simulation."""
        return max(self.figures, key=lambda figure: abs(figure.error_percent(self.is_fitted)))

    def lines(self) -> list[str]:
        """Which terms could be fitted, which could not, and which figures are off, in sentences."""
        return [*self._fitted_lines(), self._error_line()]

    def _fitted_lines(self) -> list[str]:
        if self.fitted is None:
            return [f"Nothing is fitted: {self.why_not}."]
        of = self.fitted
        values = {
            "factor": f"x {of.factor:.3g}", "step_cpu_s": f"+ {1e3 * of.step_cpu_s:.2f} ms",
            "client_s": f"+ {1e3 * of.client_s:.2f} ms",
        }  # fmt: skip
        known = [f"{TERMS[name]} {values[name]}" for name, left in self.left.items() if left <= KNOWN]
        unknown = [f"{TERMS[name]} (taken as {values[name]})" for name, left in self.left.items() if left > KNOWN]
        lines = [f"Fitted to the first half: {', '.join(known)}."] if known else []
        return lines + ([f"The recording does not determine {', nor '.join(unknown)}."] if unknown else [])

    def _error_line(self) -> str:
        worst, percent = self.worst, self.worst.error_percent(self.is_fitted)
        if abs(percent) <= GOOD_PERCENT:
            return f"Every figure is within {GOOD_PERCENT:.0f} %; furthest off is {worst.name}, {percent:+.0f} %."
        return f"The largest error is that of {worst.name}, {percent:+.0f} %. Its causes are {ERRS[worst.metric]}."


def match(run: Run, profile: Profile, asynchronous: bool = False) -> Match:
    """Simulate a measured run with a profile, fit its terms to the first half of the requests, and compare the second.

    asynchronous: whether the engine formed the next batch while one ran.
    """
    terms = EngineTerms("none", "the profile has all", asynchronous=asynchronous)
    rows = len(run.requests)
    second = np.arange(rows) >= rows // 2
    run = dataclasses.replace(run, requests=run.requests.assign(stage=np.where(second, SECOND, FIRST)))
    plain = simulated(run, profile, terms)
    fitted, after, why_not = None, None, ""
    left: dict[str, float] = {}
    if rows < LEAST_FITTED:
        why_not = f"{rows} requests are too few, {LEAST_FITTED} are enough"
    else:
        try:
            fitted, left = fit_with_spread([(run, profile, terms)], [str(FIRST)])
            after = fitted.served(run, profile, terms)
        except WorkloadError as error:
            why_not = str(error)
    measured, by_profile = (figures_of(table, run, str(SECOND)) for table in (run.requests, plain))
    by_fit = {} if after is None else figures_of(after, run, str(SECOND))
    names = [(metric, statistic) for metric in METRICS for statistic in STATISTICS]
    figures = (
        Figure(*name, *(of.get("_".join(name), np.nan) for of in (measured, by_profile, by_fit))) for name in names
    )
    return Match(tuple(figure for figure in figures if figure.measured_s > 0), fitted, left, why_not)

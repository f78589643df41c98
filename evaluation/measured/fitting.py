"""Fits three terms to measured runs, so that a profile comes near an engine.

Judge them on other runs. A term stays near its prior where the runs do not determine it: with one run at one load, slow
steps may be the device's or the CPU's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import means_of
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import simulated
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import Profile
from servegym.simulator.features.front_end import FrontEnd

# Before any run is seen: 0 and, as standard deviations, log of the factor, seconds of CPU, seconds of the client.
PRIOR = np.array([0.1, 0.001, 0.010])
NOISE = 0.03  # standard deviation of a mean's logarithm: what the simulator leaves with the right terms
STEP = 0.1  # of a prior: for derivatives
FAR = 3.0  # in standard deviations: residuals beyond it count linearly instead of squared
FROM = (0.0, 0.5, 0.5)
LOWEST, HIGHEST = (-20.0, 0.0, 0.0), (20.0, 100.0, 1000.0)  # of what is fitted, in priors


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Changes a profile: batch times by a factor, then plus step_cpu_s; client_s: s between client and queue."""

    factor: float = 1.0
    step_cpu_s: float = 0.0
    client_s: float = 0.0

    def served(self, run: Run, profile: Profile, terms: EngineTerms) -> pd.DataFrame:
        """Simulate the run as `simulated` does, with these terms beside those of the engine."""
        beside = dataclasses.replace(terms, before_s=terms.before_s + self.client_s)
        return simulated(run, dataclasses.replace(profile, device=self._device(profile)), beside)

    def within(self, profile: Profile) -> Profile:
        """Return the profile with these terms in it."""
        front = profile.front_end or FrontEnd()
        front = dataclasses.replace(front, request_s=front.request_s + self.client_s)
        return dataclasses.replace(profile, device=self._device(profile), front_end=front)

    def _device(self, profile: Profile) -> LatencyModel:
        return profile.device.times(self.factor).plus_constant(self.step_cpu_s)


Setting = tuple[Run, Profile, EngineTerms]  # what is measured, and what is assumed of its engine


def fit(settings: Sequence[Setting], stages: Sequence[str] | None = None) -> Fitted:
    """Return the terms of `fit_with_spread`."""
    return fit_with_spread(settings, stages)[0]


def fit_with_spread(
    settings: Sequence[Setting], stages: Sequence[str] | None = None
) -> tuple[Fitted, dict[str, float]]:
    """Fit the terms to the mean E2E, ITL and TTFT of each stage of these runs; return them and how certain each is.

    Least squares of logarithms with PRIOR; far residuals count less (soft L1), as a wait in a nearly full queue hardly
    depends on any term. Runs that clients gave up on are left out: their giving up is not simulated.
    stages: only measurements of these stages count (None: all); requests of the others are simulated too.
    How certain: the posterior standard deviation of each term by its name, as a share of the prior's; at 1 the runs do
    not determine the term. Raises WorkloadError if no run is left.
    """
    from scipy.optimize import least_squares

    fitted = [setting for setting in settings if not setting[0].overloaded]
    if not fitted:
        raise WorkloadError("nothing to fit: clients gave up on requests in each of these runs")
    measured = np.concatenate([_log_means(run, run.requests, stages) for run, _, _ in fitted])

    @functools.cache
    def log_means(factor: float, step_cpu_s: float, client_s: float) -> np.ndarray:
        terms = Fitted(factor, step_cpu_s, client_s)
        return np.concatenate([_log_means(run, terms.served(run, profile, of), stages) for run, profile, of in fitted])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(log_means(*_terms(x)) - measured) / NOISE, x])

    def slopes(x: np.ndarray) -> np.ndarray:
        here = residuals(x)
        return np.column_stack([(residuals(x + step) - here) / STEP for step in STEP * np.eye(3)])

    found = least_squares(residuals, FROM, slopes, (LOWEST, HIGHEST), xtol=1e-4, ftol=1e-4, loss="soft_l1", f_scale=FAR)
    slope = slopes(found.x)
    left = np.sqrt(np.diag(np.linalg.inv(slope.T @ slope)))
    names = (field.name for field in dataclasses.fields(Fitted))
    return Fitted(*_terms(found.x)), dict(zip(names, left.tolist(), strict=True))


def _terms(x: np.ndarray) -> tuple[float, float, float]:
    factor, step_cpu_s, client_s = x * PRIOR
    return float(np.exp(factor)), float(step_cpu_s), float(client_s)


def _log_means(run: Run, requests: pd.DataFrame, stages: Sequence[str] | None) -> np.ndarray:
    stages = stages or run.stages[1:] or run.stages
    return np.log([mean for stage in stages for mean in means_of(requests, run, stage).values()])

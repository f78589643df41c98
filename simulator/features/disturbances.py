"""Noise and drift of devices, and the online correction of estimators (ProServe, section 4.1)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.records.random import normal
from servegym.simulator.records.types import CORRECTION, DISTURBANCE

MOST_NOISE = 10.0  # with more, exp(noise z) of a normal z is any duration at all


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """Disturbances of a device: real duration = device model's x noise x drift.

    noise: standard deviation of the log of an iteration's factor (log-normal, mean 1), at most 10. drift_per_s:
    relative slowdown per second. shift_ratio: factor from the time shift_s on. seed: of the noise.
    """

    noise: float = 0.0
    drift_per_s: float = 0.0
    shift_s: float = math.inf
    shift_ratio: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= MOST_NOISE:
            raise DeploymentError(f"disturbance: noise is {self.noise}; it should be from 0 to {MOST_NOISE:g}")
        if not 0 <= self.drift_per_s < math.inf:
            raise DeploymentError(f"disturbance: drift_per_s is {self.drift_per_s}; it should be 0 or more, and finite")
        if not self.shift_s >= 0:
            raise DeploymentError(f"disturbance: shift_s is {self.shift_s}; it should be 0 or more")
        if not 0 < self.shift_ratio < math.inf:
            raise DeploymentError(f"disturbance: shift_ratio is {self.shift_ratio}; it should be above 0")

    def to_array(self) -> np.ndarray:
        return np.array([tuple(vars(self).values())], DISTURBANCE)


@dataclasses.dataclass(frozen=True)
class Correction:
    """Online correction of the estimator, after each window of an engine's iterations:

    beta <- theta beta + (1 - theta) mean(real / fitted), from beta = 1; the estimate is beta x the fit. Only the
    coefficients that the estimator's form declares as `scaled` are multiplied.

    compounding: as the paper prints it: each time the present estimate is multiplied by beta, and real / estimate takes
    the place of real / fitted (it overshoots).
    """

    theta: float = 0.9
    window_iterations: int = 10
    compounding: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.theta < 1:
            raise DeploymentError(f"correction: theta is {self.theta}; it should be 0 or more and below 1")
        if not 1 <= self.window_iterations < 2**31 or self.window_iterations != int(self.window_iterations):
            raise DeploymentError(
                f"correction: window_iterations is {self.window_iterations}; it should be a whole number of 1 or more"
            )

    def to_array(self) -> np.ndarray:
        return np.array([tuple(vars(self).values())], CORRECTION)


@inlined_kernel
def disturbed(duration_s, disturbance, engine, now_s):
    """Return the real duration, in s, of an iteration that the engine starts now, from the device model's."""
    if disturbance.noise > 0:
        z = normal(disturbance.seed, engine.index, engine.iterations)
        duration_s *= np.exp(disturbance.noise * z - 0.5 * disturbance.noise * disturbance.noise)
    if now_s >= disturbance.shift_s:
        duration_s *= disturbance.shift_ratio
    return duration_s * (1.0 + disturbance.drift_per_s * now_s)


@kernel
def correct_estimator(run, e):
    """Write the corrected coefficients of engine e's estimator; False if its scale is not finite."""
    scale = run.engines[e].estimate_scale
    if not scale < np.inf:
        return False
    for i in range(run.fitted.shape[1]):
        run.estimate[e, i] = run.fitted[e, i].fixed + scale * run.fitted[e, i].scaled
    return True


@kernel
def correct(engine, correction, real_s):
    """Update the engine's estimate_scale with the real duration of an iteration, in s, without what was moved first."""
    fitted_s = engine.batch_estimate_s - (engine.moving_s + engine.ahead.waits_s)
    if correction.compounding == 0:
        fitted_s /= engine.correction.batch_scale
    if not (fitted_s > 0.0 and real_s > 0.0):
        return  # the ratio has no meaning
    engine.correction.window_ratios += real_s / fitted_s
    engine.correction.window_length += 1
    if engine.correction.window_length < correction.window_iterations:
        return
    mean = engine.correction.window_ratios / engine.correction.window_length
    engine.correction.beta = correction.theta * engine.correction.beta + (1.0 - correction.theta) * mean
    engine.estimate_scale = (
        engine.estimate_scale * engine.correction.beta if correction.compounding else engine.correction.beta
    )
    engine.correction.window_ratios = 0.0
    engine.correction.window_length = 0

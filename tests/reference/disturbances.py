"""Drift of a device from its model, and the online correction of an estimator."""

from dataclasses import dataclass, field

from .latency import Latency, Shape
from .requests import INF


@dataclass
class Drift:
    """Drift of a device. (Noise has tests of its own.)"""

    drift_per_s: float = 0.0
    shift_s: float = INF
    shift_ratio: float = 1.0

    def factor(self, now_s: float) -> float:
        return (self.shift_ratio if now_s >= self.shift_s else 1.0) * (1.0 + self.drift_per_s * now_s)


@dataclass
class Scaled:
    """An estimator, multiplied by the factor of online correction."""

    fit: Latency
    scale: float

    def batch(self, shapes: list[Shape]) -> float:
        return self.scale * self.fit.batch(shapes)

    def exec(self, tokens: int, cached: float, decoding: bool) -> float:
        return self.scale * self.fit.exec(tokens, cached, decoding)


@dataclass
class Corrector:
    """Online correction of one engine's estimator."""

    theta: float
    window_iterations: int
    compounding: bool
    beta: float = 1.0
    scale: float = 1.0
    ratios: list[float] = field(default_factory=list)

    def see(self, real_s: float, fitted_s: float, scale: float) -> None:
        """Add an iteration. scale: the factor when it was estimated."""
        if not (fitted_s > 0 and real_s > 0):
            return
        self.ratios.append(real_s / (scale * fitted_s if self.compounding else fitted_s))
        if len(self.ratios) == self.window_iterations:
            mean = sum(self.ratios) / len(self.ratios)
            self.beta = self.theta * self.beta + (1 - self.theta) * mean
            self.scale = self.scale * self.beta if self.compounding else self.beta
            self.ratios = []

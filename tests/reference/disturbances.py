"""What a device does besides its model, and how an estimator follows it."""

from dataclasses import dataclass, field

from .latency import Latency, Shape
from .requests import INF


@dataclass
class Drift:
    """Of a device (noise is left to the tests of it)."""

    drift_per_s: float = 0.0
    shift_s: float = INF
    shift_ratio: float = 1.0

    def factor(self, now_s: float) -> float:
        return (self.shift_ratio if now_s >= self.shift_s else 1.0) * (1.0 + self.drift_per_s * now_s)


@dataclass
class Scaled:
    """An estimator times the factor that online correction has found."""

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
        """`scale`: when it was estimated."""
        if not (fitted_s > 0 and real_s > 0):
            return
        self.ratios.append(real_s / (scale * fitted_s if self.compounding else fitted_s))
        if len(self.ratios) == self.window_iterations:
            mean = sum(self.ratios) / len(self.ratios)
            self.beta = self.theta * self.beta + (1 - self.theta) * mean
            self.scale = self.scale * self.beta if self.compounding else self.beta
            self.ratios = []

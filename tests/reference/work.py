"""A batch that has been started, and where it can be suspended: "Preemptible prefill" of docs/simulation.md."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .engines import Batch
from .latency import Shape
from .requests import Request


@dataclass(frozen=True)
class Operators:
    """The operators of an engine: s per layer for (prefill tokens, sum lq^2, sum lq lkv, 1) of each."""

    layers: int = 1
    coefficients: tuple[tuple[float, float, float, float], ...] = ((1.0, 0.0, 0.0, 0.0),)
    check_s: float = 0.0
    jitter_s: float = 0.0

    def boundaries(self, shapes: list[Shape], preemptible: str) -> list[tuple[int, float]]:
        """Return (completed layers, completed share of the next one) at each boundary."""
        if preemptible == "layers":
            return [(layer, 1.0) for layer in range(self.layers)]
        tokens = sum(lq for lq, _, _ in shapes)
        squared, cached = sum(lq * lq for lq, _, _ in shapes), sum(lq * lkv for lq, lkv, _ in shapes)
        times = [a * tokens + b * squared + c * cached + d for a, b, c, d in self.coefficients]
        shares = [sum(times[: k + 1]) / sum(times) for k in range(len(times))]
        return [(layer, share) for layer in range(self.layers) for share in shares]


@dataclass(eq=False)
class Work:
    """An iteration; with `boundaries`, a task."""

    batch: Batch
    computing_s: float  # D
    moving_s: float
    estimate_s: float  # moving included
    fitted_s: float  # the estimator's fit, without correction and moving
    scale: float  # of the estimator when it was started
    iteration: int  # in the log
    boundaries: list[float]  # of computing time, the end among them; empty: not preemptible
    done_s: float = 0.0  # of D, when it was last suspended
    moved: bool = False  # nothing is left to be moved
    start_s: float = 0.0  # when it was started or resumed
    evicted: list[int] = field(default_factory=list)  # where it was formed while another ran
    emitting: list[Request] = field(default_factory=list)  # the same
    loaded_s: float = 0.0  # the same: when its LoRA adapters are in host memory
    activate_s: float = 0.0  # the same: what it takes to copy them to device memory

    @property
    def is_task(self) -> bool:
        return len(self.boundaries) > 0

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.batch)

    @property
    def leader(self) -> Request:
        return self.batch[0][0]

    @property
    def executed_s(self) -> float:
        """Return how long it had run when it was last started or resumed, moving included."""
        return self.done_s + (self.moving_s if self.moved else 0.0)

    @property
    def moving_left_s(self) -> float:
        return 0.0 if self.moved else self.moving_s

    @property
    def end_s(self) -> float:
        return self.start_s + ((self.computing_s - self.done_s) + self.moving_left_s)

    def time_s(self, boundary_s: float) -> float:
        """Return when it gets to a boundary."""
        return self.start_s + ((boundary_s - self.done_s) + self.moving_left_s)

    def next_boundary(self, jitter_s: float, reached: Callable[[float], bool]) -> tuple[float, float] | None:
        """Return the first boundary whose time is `reached`, and that time; None: the end comes first."""
        for boundary_s in self.boundaries[:-1]:
            time_s = self.time_s(boundary_s) + jitter_s
            if boundary_s > self.done_s and reached(time_s):
                return (boundary_s, time_s) if time_s < self.end_s else None
        return None

    def suspend(self, boundary_s: float) -> None:
        self.done_s, self.moved = boundary_s, True

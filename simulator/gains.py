"""Gain functions: what a token earns (ProServe, section 2 and Table 1)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servegym.simulator.compilation import Compiled
from servegym.simulator.errors import GainError
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.signatures import gain


@gain
def tdg(request, outcome, now_s):
    """Token-level Deadline-aware Gain (Eq. 3): the token's weight, iff it is out strictly before its deadline."""
    if now_s < next_deadline_s(request):
        return request.first_token_gain if request.emitted_tokens == 0 else request.decode_token_gain
    return 0.0


@dataclasses.dataclass(frozen=True)
class Gain:
    """A gain function and its weights.

    first_weight: w_p, worth of a first token; None: mean prompt tokens / mean output tokens of the workload.
    decode_weight: w_d, worth of a later token.
    buffered_first_token: deadlines count from the TTFT SLO; if False, from the first token where it is earlier
    (ProServe, footnote 2).
    """

    name: str = "tdg"
    first_weight: float | None = None
    decode_weight: float = 1.0
    buffered_first_token: bool = True

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise GainError(f"unknown gain function {self.name!r}; known: {', '.join(sorted(FUNCTIONS))}")
        for field in ("first_weight", "decode_weight"):
            value = getattr(self, field)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise GainError(f"gain {self.name}: {field} is {value}; it should be 0 or more")

    @property
    def function(self) -> Compiled:
        return FUNCTIONS[self.name]

    def token_gains(self, workload: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float64[requests] twice: what a first and a later token of each request is worth."""
        first_weight = self.first_weight
        if first_weight is None:
            first_weight = workload["prompt_tokens"].mean() / workload["output_tokens"].mean()
        return workload["weight"] * first_weight, workload["weight"] * self.decode_weight

    def ideal(self, workload: np.ndarray) -> np.ndarray:
        """float64[requests]: the gain of each request when every token is in time."""
        first, decode = self.token_gains(workload)
        return first + (workload["output_tokens"] - 1) * decode


FUNCTIONS: dict[str, Compiled] = {"tdg": tdg}

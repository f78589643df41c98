"""An estimator that knows its device: what a profile of the device itself tells, where a fit has its errors."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.latency_models.forms.piecewise import A_D, A_P, B_P, F_D, F_P, KNOTS, interpolate
from servegym.latency_models.model import LatencyModel
from servegym.simulator.compilation import Compiled, kernel
from servegym.simulator.errors import ProfileError
from servegym.simulator.requests import cached_of, is_decoding, left_of
from servegym.simulator.signatures import queue_latency, request_latency


@kernel
def alone_s(tokens, cached, decoding, coefficients):
    """A batch of one request less an empty one."""
    first, count = KNOTS + 1, int(coefficients[KNOTS])
    seconds = interpolate(tokens, coefficients, first, count) - interpolate(0.0, coefficients, first, count)
    if decoding:
        return seconds + coefficients[A_D] * cached + coefficients[F_D]
    return seconds + coefficients[A_P] * tokens * tokens + coefficients[B_P] * tokens * cached + coefficients[F_P]


@request_latency
def request_s(tokens, cached, decoding, coefficients):
    return alone_s(float(tokens), float(cached), decoding, coefficients)


@queue_latency
def exec_s(requests, queue, coefficients, plan):
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].exec_s = alone_s(
            float(left_of(request)), float(cached_of(request)), is_decoding(request), coefficients
        )


@dataclasses.dataclass(frozen=True, eq=False)
class KnownDevice:
    """The device model of form "piecewise" as an estimator. Raises ProfileError for another form."""

    device: LatencyModel
    request_s = request_s
    exec_s = exec_s

    def __post_init__(self) -> None:
        if self.device.form != "piecewise":
            raise ProfileError(f"a known device has form 'piecewise', not '{self.device.form}'")

    @property
    def batch_s(self) -> Compiled:
        return self.device.batch_s

    @property
    def coefficients(self) -> np.ndarray:
        return self.device.coefficients

    @property
    def scaled(self) -> np.ndarray:
        return self.device.scaled

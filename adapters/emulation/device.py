"""The emulated device: the duration and the end of each batch."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, TextIO

import numpy as np

from servegym.adapters.emulation.clock import VIRTUAL_CLOCK, Clock, RealClock
from servegym.adapters.emulation.settings import Settings
from servegym.simulator.records.types import BATCH_SUMS

# All times are in seconds of the device's clock since its first step: when a step was submitted, began, should have
# ended, and when its result was taken. duration_s: the profile's time of the batch. Then the sums of the batch.
LOG_COLUMNS = ("handed_over_s", "start_s", "end_s", "taken_s", "duration_s", *BATCH_SUMS)


class Device:
    """A device that runs batches one after the other, each for the time that the profile gives."""

    def __init__(self, settings: Settings) -> None:
        self.clock: Clock = VIRTUAL_CLOCK if settings.virtual else RealClock()
        self.speed = 1.0 if settings.virtual else settings.speed
        self.free_s = 0.0
        self._model = settings.profile.device
        self._origin_s: float | None = None
        self._log: TextIO | None = None
        if settings.log is not None:
            self._log = settings.log.open("w", encoding="utf-8", buffering=1)
            self._log.write(",".join(LOG_COLUMNS) + "\n")

    def duration_s(self, sums: np.ndarray) -> float:
        """Seconds that a batch, BATCH[1], takes, by the function that the simulator calls."""
        return float(self._model.batch_s(sums[0], self._model.coefficients))

    def run(self, sums: np.ndarray, result: Any) -> DeviceFuture:
        """Queue a batch, which begins when the device is free. Returns a future that gives `result` at its end."""
        now_s = self.clock.now_s()
        start_s = max(now_s, self.free_s)
        duration_s = self.duration_s(sums)
        self.free_s = start_s + duration_s / self.speed
        line = (now_s, start_s, self.free_s, duration_s, sums) if self._log is not None else None
        return DeviceFuture(self, result, self.free_s, line)

    def log(self, now_s: float, start_s: float, end_s: float, duration_s: float, sums: np.ndarray) -> None:
        if self._log is None or self._log.closed:
            return
        if self._origin_s is None:
            self._origin_s = start_s
        times = (now_s, start_s, end_s, self.clock.now_s())
        self._write(((time_s - self._origin_s) * self.speed for time_s in times), duration_s, sums)

    def _write(self, times_s: Iterable[float], duration_s: float, sums: np.ndarray) -> None:
        assert self._log is not None
        self._log.write(
            ",".join(f"{value:.9g}" for value in (*times_s, duration_s, *sums[0][list(BATCH_SUMS)].tolist())) + "\n"
        )

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


class DeviceFuture(Future):
    """A future that is done at a time of the device's clock; `result` waits until then."""

    def __init__(self, device: Device, result: Any, done_s: float, line: tuple[Any, ...] | None) -> None:
        super().__init__()
        self._device, self._value, self._done_s, self._line = device, result, done_s, line

    def done(self) -> bool:
        return super().done() or self._device.clock.now_s() >= self._done_s

    def result(self, timeout: float | None = None) -> Any:
        if not super().done():
            self._device.clock.wait_until(self._done_s)
            self.set_result(self._value)
            if self._line is not None:
                self._device.log(*self._line)
        return super().result(timeout)


def finished(result: Any) -> Future:
    """Make a future that is done already."""
    future: Future = Future()
    future.set_result(result)
    return future

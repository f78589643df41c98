"""The emulated device: the duration and the end of each batch, on the machine's clock or a virtual one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TextIO
from unittest import mock

import numpy as np

from servegym.adapters.emulation.settings import Settings
from servegym.simulator.records.types import BATCH_SUMS


class Clock(Protocol):
    def now_s(self) -> float:
        """Return seconds since a fixed moment."""

    def wait_until(self, time_s: float) -> None:
        """Return at `time_s` or later."""


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.perf_counter()

    def wait_until(self, time_s: float) -> None:
        left_s = time_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class VirtualClock:
    """A clock that advances only in `wait_until`, to the time waited for.

    While it is `installed`, time.time() and time.monotonic() return it in this process, so that vLLM's arrival times,
    its metrics and a scheduler plug-in all read it. time.perf_counter() stays real, as it measures code.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Set the clock to 0 and replace time.time() and time.monotonic() by it inside the with block."""
        self._now_s = 0.0
        with mock.patch.object(time, "time", self.now_s), mock.patch.object(time, "monotonic", self.now_s):
            yield


# One clock for the process, as vLLM makes executors and passes them no settings.
VIRTUAL_CLOCK = VirtualClock()


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
        """Return the seconds that a batch, BATCH[1], takes, by the function that the simulator calls."""
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

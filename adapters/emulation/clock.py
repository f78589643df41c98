"""Clocks of an emulated device: the machine's clock, or a virtual one that the device's steps advance."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol
from unittest import mock


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since a fixed moment."""

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

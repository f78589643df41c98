"""Clocks of an emulated device: the machine's, or one that the device's steps advance."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol
from unittest import mock


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since some moment that stays the same."""

    def wait_until(self, time_s: float) -> None:
        """Return when it is `time_s`, or later."""


class RealClock:
    """The machine's."""

    def now_s(self) -> float:
        return time.perf_counter()

    def wait_until(self, time_s: float) -> None:
        left_s = time_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class VirtualClock:
    """A clock that advances only when something waits: waiting sets it to the time waited for.

    While it is `installed`, it is what time.time() and time.monotonic() say in this process, so that vLLM's arrival
    times, its metrics and a scheduler plug-in all read it. time.perf_counter() stays real: it measures code.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """From 0 on."""
        self._now_s = 0.0
        with mock.patch.object(time, "time", self.now_s), mock.patch.object(time, "monotonic", self.now_s):
            yield


# The process's one virtual clock: executors are made by vLLM, which hands them nothing.
VIRTUAL_CLOCK = VirtualClock()

"""Divides the episodes of a step among threads, as many as are worth it."""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servegym.envs.rings import reverse_ring, ring_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# To wake a thread takes 50 to 150 us of processor and wall-clock time, and the episodes it takes over are in another
# core's cache. A thread is used when its part takes at least this long.
MIN_PART_S = 100e-6
TIMED_EVERY = 8  # steps; to read the clocks takes a microsecond
SMOOTHING = 0.1  # weight of the last timed step in the moving average of a step's time


class Part(NamedTuple):
    """A thread's part of a step: a ring of episodes (rings.py) and its direction, until it meets the other thread."""

    ring: np.ndarray
    downwards: bool


@functools.cache
def worker_threads(process: int) -> ThreadPoolExecutor:
    """The threads of a process beside the caller's own; a fork needs new ones. Kernels run without the GIL."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "servegym-episodes")


class WorkSharing:
    """Divide n episodes among as many threads as are worth it.

    most: the most threads; None: one a core. The results of a step do not depend on it. `threads`: used in the next
    step. `timed`: whether the caller is to time this step and give it to `record`.
    """

    def __init__(self, n: int, most: int | None = None):
        self._n, self._most = n, max(1, min(most or os.cpu_count() or 1, n))
        self._step_s, self._steps, self.timed = 0.0, 0, False
        self._use(1)

    def begin(self) -> list[Part]:
        """Return the parts of the next step: the first for the caller's thread, the others for `worker_threads`.

        Each thread starts where it stopped in the previous step and goes back: those episodes are in its core's cache.
        """
        for ring in self._rings:
            reverse_ring(ring)
        self._ways.reverse()
        self._steps += 1
        self.timed = self._steps % TIMED_EVERY == 0
        return self._ways[0]

    def record(self, seconds: float) -> None:
        """Take the processor time of a step, summed over its parts, and choose the number of threads."""
        self._step_s += SMOOTHING * (seconds - self._step_s)
        threads = max(1, min(self._most, int(self._step_s / MIN_PART_S)))
        if threads != self.threads:
            self._use(threads)

    def _use(self, threads: int) -> None:
        self.threads = threads
        bounds = np.linspace(0, self._n, -(-threads // 2) + 1).round().astype(int).tolist()
        self._rings = [ring_of(first, end, acting=True) for first, end in itertools.pairwise(bounds)]
        self._ways = [
            [Part(ring, downwards) for ring in self._rings for downwards in ways][:threads]
            for ways in ((False, True), (True, False))
        ]

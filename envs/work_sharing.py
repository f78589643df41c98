"""How many threads share a step of many episodes, and which episodes are whose."""

from __future__ import annotations

import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from servegym.envs.rings import reverse_ring, ring_of

# A thread that is woken costs 50 to 150 us of processor time, about as much by the clock, and its part of the episodes
# is in another core's cache. So it gets no less to do than this.
WORTH_A_THREAD_S = 100e-6
TIMED = 8  # one step in so many is timed: to read clocks takes a microsecond
SMOOTHING = 0.1  # weight of the last timed step in what a step takes


class Part(NamedTuple):
    """What one thread does: its way round a ring of episodes (rings.py), as far as it comes."""

    ring: np.ndarray
    downwards: bool


@functools.cache
def helpers(process: int) -> ThreadPoolExecutor:
    """Threads beside the caller's own, of a process (a fork has none of its parent's). Kernels run without the GIL."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "servegym-episodes")


class Sharing:
    """Of n episodes among as many threads as are worth it. `threads`: those of the next step. `timed`: whether this one
    is to be measured, for `took`.

    most: threads at most; None: one a core. What comes out of a step does not depend on it.
    """

    def __init__(self, n: int, most: int | None = None):
        self._n, self._most = n, max(1, min(most or os.cpu_count() or 1, n))
        self._step_s, self._steps, self.timed = 0.0, 0, False
        self._use(1)

    def begin(self) -> list[Part]:
        """The parts of a step: the first for the caller's thread, others for `helpers`.

        Each thread turns round where it came to in the step before: what it did last is still in its core's cache.
        """
        for ring in self._rings:
            reverse_ring(ring)
        self._ways.reverse()
        self._steps += 1
        self.timed = self._steps % TIMED == 0
        return self._ways[0]

    def took(self, seconds: float) -> None:
        """What the parts of a step took of processor time, added up."""
        self._step_s += SMOOTHING * (seconds - self._step_s)
        threads = max(1, min(self._most, int(self._step_s / WORTH_A_THREAD_S)))
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

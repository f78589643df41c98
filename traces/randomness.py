"""Independent streams of random numbers from one seed, so that a study varies one thing at a time.

Lengths, arrivals and priorities of one seed are independent: the same seed gives the same
lengths and priorities at every load (common random numbers).
"""

from __future__ import annotations

import enum

import numpy as np

from servegym.errors import WorkloadError


class Stream(enum.IntEnum):
    """What a stream is for. The numbers are part of what a seed means: never renumber them."""

    LENGTHS = 0
    ARRIVALS = 1
    RECIPE = 2
    BLOCKS = 3


def generator(seed: int, stream: Stream) -> np.random.Generator:
    """The generator of one stream of `seed`, a whole number of 0 or more."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise WorkloadError(f"a seed of {seed!r}: a seed is a whole number of 0 or more")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(int(stream),))))

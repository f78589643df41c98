"""Batches of requests as latency models take them."""

import numpy as np

from servegym.simulator.records import batches
from servegym.simulator.records.types import BATCH


def batch_of(prefills: list[tuple[int, int]], decodes: list[int]) -> np.ndarray:
    """BATCH[1] of prefills (tokens, cached) and decodes (cached)."""
    found = np.zeros(1, BATCH)
    for tokens, cached in prefills:
        batches.add(found[0], tokens, cached, False)
    for cached in decodes:
        batches.add(found[0], 1, cached, True)
    return found

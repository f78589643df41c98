"""Steps in the time of a batch, which jumps where the batch exceeds a multiple of a number of tokens."""

from __future__ import annotations

import numpy as np

from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.records.types import BATCH

TILES = (64, 128, 256)  # candidates, in tokens: tile sizes of matrix products
PROFILED_TOKENS = 512  # largest batch to look at: later steps are a small share of a batch's time
AFTER_TOKENS = 8  # a step lies within so many tokens after a multiple
LEAST_RISE = 0.05  # smallest mean rise of a step, less the rise just before it, as a share of the batch's time


def step_tokens(device: LatencyModel) -> int:
    """Return the number of tokens at whose multiples the device's batch time jumps; 0: there are no such jumps.

    It is found from times of single prefills just before, at and just after multiples of tile sizes: the size with the
    largest mean rise.
    """
    rises = {size: _rise(device, np.arange(size, PROFILED_TOKENS + 1, size)) for size in TILES}
    largest = max(rises, key=lambda size: rises[size])
    return largest if rises[largest] >= LEAST_RISE else 0


def _rise(device: LatencyModel, tokens: np.ndarray) -> float:
    """Return the mean relative rise of batch time just after these numbers of tokens, less that just before."""
    before_s, at_s, after_s = (
        np.array([device.batch_s.entry(batch, device.coefficients) for batch in _prefills(tokens + more)])
        for more in (-AFTER_TOKENS, 0, AFTER_TOKENS)
    )
    return float(((after_s - at_s) / at_s - (at_s - before_s) / at_s).mean())


def _prefills(tokens: np.ndarray) -> np.ndarray:
    """Return batches of one prefill each, with nothing cached."""
    batches = np.zeros(len(tokens), BATCH)
    batches["prefill_requests"] = 1
    batches["prefill_tokens"] = batches["longest_prefill_tokens"] = tokens
    batches["prefill_tokens_squared"] = tokens.astype("f8") ** 2
    return batches

"""Steps in the time of a batch: the number of tokens after whose multiples a device takes longer."""

from __future__ import annotations

import numpy as np

from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.records.types import BATCH

TILES = (64, 128, 256)  # tokens: sizes of the tiles that matrix products are computed in
PROFILED_TOKENS = 512  # so far steps are looked for: later ones are a small share of a batch's time
AFTER_TOKENS = 8  # a step is all within so many tokens of a multiple
LEAST_RISE = 0.05  # mean rise at a step, above that just before it, as a share of the batch's time


def step_tokens(device: LatencyModel) -> int:
    """The number of tokens after whose multiples a batch of the device takes longer by a step; 0: there are none.

    As an engineer would find it: from the times of single prefills just before, at and just after multiples of sizes of
    tiles; of the sizes, that with the largest mean rise.
    """
    rises = {size: _rise(device, np.arange(size, PROFILED_TOKENS + 1, size)) for size in TILES}
    largest = max(rises, key=lambda size: rises[size])
    return largest if rises[largest] >= LEAST_RISE else 0


def _rise(device: LatencyModel, tokens: np.ndarray) -> float:
    before_s, at_s, after_s = (
        np.array([device.batch_s(batch, device.coefficients) for batch in _prefills(tokens + more)])
        for more in (-AFTER_TOKENS, 0, AFTER_TOKENS)
    )
    return float(((after_s - at_s) / at_s - (at_s - before_s) / at_s).mean())


def _prefills(tokens: np.ndarray) -> np.ndarray:
    """Batches of one prefill each, with nothing cached."""
    batches = np.zeros(len(tokens), BATCH)
    batches["prefill_requests"] = 1
    batches["prefill_tokens"] = batches["longest_prefill_tokens"] = tokens
    batches["prefill_tokens_squared"] = tokens.astype("f8") ** 2
    return batches

"""Batch times composed from operator times: layers x (linear operators + attention) + LM head.

Device time only: the CPU's share of an iteration is not in it. The decodes of a batch are taken at their
mean cached length and the prefills at the root mean square of their chunks, the lengths at which attention
tables have points; so the spread of lengths inside a batch is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Composition:
    """Operator times in seconds on each device: of one layer, and of the LM head.

    linear_s: (tokens) -> s, all of a layer but attention. head_s: (rows) -> s, one row a request.
    prefill_attention_s: (requests, chunk tokens) -> s, nothing cached. decode_attention_s: (requests, cached
    tokens) -> s. cached_slope_s: per chunk token and token cached before it.
    """

    layers: int
    linear_s: Callable[[np.ndarray], np.ndarray]
    head_s: Callable[[np.ndarray], np.ndarray]
    prefill_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    decode_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    cached_slope_s: float

    def duration_s(self, batches: np.ndarray) -> np.ndarray:
        """Seconds, float64[n], of a BATCH array[n] of batches that are not empty."""
        prefills, decodes = batches["prefill_requests"], batches["decode_requests"]
        attention = self.cached_slope_s * batches["prefill_tokens_cached"]
        some = prefills > 0
        length = np.sqrt(batches["prefill_tokens_squared"][some] / prefills[some])
        attention[some] += self.prefill_attention_s(prefills[some], length)
        some = decodes > 0
        length = batches["decode_cached_tokens"][some] / decodes[some]
        attention[some] += self.decode_attention_s(decodes[some], length)
        layer = self.linear_s(batches["prefill_tokens"] + decodes) + attention
        return self.layers * layer + self.head_s(prefills + decodes)

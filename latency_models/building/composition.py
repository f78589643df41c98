"""Batch times composed from operator times: layers x (linear operators + attention) + LM head.

Device time only: the CPU's share of an iteration is not in it. The decodes of a batch are taken at their
mean cached length and the prefills at the root mean square of their chunks, the lengths at which attention
tables have points; so the spread of lengths inside a batch is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

ATTENTION = "attention"
Seconds = Callable[[np.ndarray], np.ndarray]  # of tokens


@dataclass(frozen=True)
class Composition:
    """Operator times in seconds on each device: of one layer, and of the LM head.

    linear: by operator of a layer, in the order in which they run: (tokens) -> s. Norms, activation and all-reduces
    are part of the operator beside them; of `attention` it is what goes with the tokens, such as the rotary embedding.
    head_s: (rows) -> s, one row a request. prefill_attention_s: (requests, chunk tokens) -> s, nothing cached.
    decode_attention_s: (requests, cached tokens) -> s. cached_slope_s: per chunk token and token cached before it.
    mixed_attention_s: (prefill tokens, decodes, cached tokens of each) -> s that a batch of both kinds takes beyond the
    two alone; None: not known, and taken to be 0.
    """

    layers: int
    linear: Mapping[str, Seconds]
    head_s: Seconds
    prefill_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    decode_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    cached_slope_s: float
    mixed_attention_s: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None

    @property
    def form(self) -> str:
        """The latency form that can follow these times."""
        return "piecewise" if self.mixed_attention_s is None else "piecewise-mixed"

    def linear_s(self, tokens: np.ndarray) -> np.ndarray:
        """All of a layer but attention over its pairs of tokens, s."""
        return sum((seconds(tokens) for seconds in self.linear.values()), np.zeros(len(tokens)))

    def attention_s(self, batches: np.ndarray) -> np.ndarray:
        """Attention of a layer over its pairs of tokens, float64[n] s, of a BATCH array[n]."""
        prefills, decodes = batches["prefill_requests"], batches["decode_requests"]
        attention = self.cached_slope_s * batches["prefill_tokens_cached"]
        some = prefills > 0
        length = np.sqrt(batches["prefill_tokens_squared"][some] / prefills[some])
        attention[some] += self.prefill_attention_s(prefills[some], length)
        some = decodes > 0
        length = batches["decode_cached_tokens"][some] / decodes[some]
        attention[some] += self.decode_attention_s(decodes[some], length)
        if self.mixed_attention_s is not None:
            both = batches[some & (prefills > 0)]
            length = both["decode_cached_tokens"] / both["decode_requests"]
            attention[some & (prefills > 0)] += self.mixed_attention_s(
                both["prefill_tokens"], both["decode_requests"], length
            )
        return attention

    def operators_s(self, batches: np.ndarray) -> dict[str, np.ndarray]:
        """Each operator of a layer by name, float64[n] s, of a BATCH array[n]."""
        tokens = batches["prefill_tokens"] + batches["decode_requests"]
        seconds = {name: operator(tokens) for name, operator in self.linear.items()}
        seconds[ATTENTION] = seconds[ATTENTION] + self.attention_s(batches)
        return seconds

    def duration_s(self, batches: np.ndarray) -> np.ndarray:
        """Seconds, float64[n], of a BATCH array[n] of batches that are not empty."""
        rows = batches["prefill_requests"] + batches["decode_requests"]
        tokens = batches["prefill_tokens"] + batches["decode_requests"]
        return self.layers * (self.linear_s(tokens) + self.attention_s(batches)) + self.head_s(rows)

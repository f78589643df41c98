"""Batch times composed from operator times: layers x (linear operators + attention) + LM head.

These are times of the device; the CPU's share of an iteration is not in them. All decodes of a batch count with their
mean cached length, and its prefills with the root mean square of their chunks, the lengths at which attention tables
have points. So the spread of lengths inside a batch is not modelled.
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
    are part of the operator beside them; that of the mixer is what goes with the tokens, such as the rotary embedding.
    head_s: (rows) -> s, one row a request. prefill_attention_s: (requests, chunk tokens) -> s, nothing cached.
    decode_attention_s: (requests, cached tokens) -> s. cached_slope_s: per chunk token and token cached before it.
    state_s: to read and write a request's state; 0: no states. mixer: the operator that mixes tokens.
    """

    layers: int
    linear: Mapping[str, Seconds]
    head_s: Seconds
    prefill_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    decode_attention_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    cached_slope_s: float
    state_s: float = 0.0
    mixer: str = ATTENTION

    @property
    def form(self) -> str:
        """The latency form that can follow these times."""
        return "piecewise-requests" if self.state_s else "piecewise"

    def linear_s(self, tokens: np.ndarray) -> np.ndarray:
        """Sum a layer's operators, without attention over pairs of tokens, s."""
        return sum((seconds(tokens) for seconds in self.linear.values()), np.zeros(len(tokens)))

    def attention_s(self, batches: np.ndarray) -> np.ndarray:
        """Time a layer's attention over pairs of tokens, or its states: float64[n] s, of a BATCH array[n]."""
        prefills, decodes = batches["prefill_requests"], batches["decode_requests"]
        attention = self.cached_slope_s * batches["prefill_tokens_cached"] + self.state_s * (prefills + decodes)
        some = prefills > 0
        length = np.sqrt(batches["prefill_tokens_squared"][some] / prefills[some])
        attention[some] += self.prefill_attention_s(prefills[some], length)
        some = decodes > 0
        length = batches["decode_cached_tokens"][some] / decodes[some]
        attention[some] += self.decode_attention_s(decodes[some], length)
        return attention

    def operators_s(self, batches: np.ndarray) -> dict[str, np.ndarray]:
        """Time each operator of a layer, by name: float64[n] s, of a BATCH array[n]."""
        tokens = batches["prefill_tokens"] + batches["decode_requests"]
        seconds = {name: operator(tokens) for name, operator in self.linear.items()}
        seconds[self.mixer] = seconds[self.mixer] + self.attention_s(batches)
        return seconds

    def duration_s(self, batches: np.ndarray) -> np.ndarray:
        """Time batches that are not empty: float64[n] s, of a BATCH array[n]."""
        rows = batches["prefill_requests"] + batches["decode_requests"]
        tokens = batches["prefill_tokens"] + batches["decode_requests"]
        return self.layers * (self.linear_s(tokens) + self.attention_s(batches)) + self.head_s(rows)

"""Fairness: how evenly gain is distributed among clients, and among requests by length.

It is Jain's index of x = gain / ideal gain of n groups: (sum x)^2 / (n sum x^2), which is 1 if all groups get the same
share of their ideal gain, and 1/n if one gets all. Source: Jain, Chiu and Hawe, "A Quantitative
Measure of Fairness and Discrimination", DEC-TR-301, 1984.
"""

from __future__ import annotations

import numpy as np

LENGTH_GROUPS = 4  # quarters of the requests


def fairness(gain: np.ndarray, ideal_gain: np.ndarray, group: np.ndarray) -> float | None:
    """Return Jain's index of gain / ideal gain of groups, from 1/groups to 1; None: under two groups, or no gain.

    gain, ideal_gain: float64[requests]; group: int[requests], any numbers.
    """
    group = np.unique(group, return_inverse=True)[1]
    ideals = np.bincount(group, ideal_gain)
    shares = np.bincount(group, gain)[ideals > 0] / ideals[ideals > 0]
    squares = float((shares**2).sum())
    return None if len(shares) < 2 or squares == 0 else float(shares.sum() ** 2 / (len(shares) * squares))


def length_groups(table: np.ndarray) -> np.ndarray:
    """Return int64[requests]: the quarter of the requests, by prompt plus output tokens, that each is in.

    Requests of equal length are in one group, so there may be fewer groups than four.
    """
    tokens = tokens_of(table)
    if len(tokens) == 0:
        return tokens
    ordered = np.sort(tokens)
    edges = [ordered[-(-part * len(tokens) // LENGTH_GROUPS) - 1] for part in range(1, LENGTH_GROUPS)]
    return np.unique(np.searchsorted(edges, tokens), return_inverse=True)[1]


def in_words(table: np.ndarray, group: np.ndarray) -> list[str]:
    """Return a name for each group: "130 to 512 tokens"."""
    tokens = tokens_of(table)
    ranges = [tokens[group == one] for one in range(group.max() + 1)] if len(group) else []
    return [f"{these.min()} to {these.max()} tokens" for these in ranges]


def tokens_of(table: np.ndarray) -> np.ndarray:
    """Return int64[requests]: prompt plus output tokens."""
    return table["prompt_tokens"].astype("i8") + table["output_tokens"]

"""How evenly gain is shared out: among clients, and among requests by their length.

Measured by Jain's index of the groups' gain ratios x (gain over ideal gain): (sum x)^2 / (n sum x^2), 1 where all
groups get the same share of what they could gain, 1/n where one gets all. Source: Jain, Chiu and Hawe, "A Quantitative
Measure of Fairness and Discrimination", DEC-TR-301, 1984.
"""

from __future__ import annotations

import numpy as np

LENGTH_GROUPS = 4  # quarters of the requests


def fairness(gain: np.ndarray, ideal_gain: np.ndarray, group: np.ndarray) -> float | None:
    """Jain's index of the gain ratios of groups, from 1/groups to 1; None: fewer than two groups, or nothing gained.

    gain, ideal_gain: float64[requests]; group: int[requests], any numbers.
    """
    group = np.unique(group, return_inverse=True)[1]
    ideals = np.bincount(group, ideal_gain)
    shares = np.bincount(group, gain)[ideals > 0] / ideals[ideals > 0]
    squares = float((shares**2).sum())
    return None if len(shares) < 2 or squares == 0 else float(shares.sum() ** 2 / (len(shares) * squares))


def length_groups(table: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """int64[requests]: the quarter of the requests, by prompt and output tokens together, that each is in; and the
    quarters in words, "130 to 512 tokens". Requests of one length are in one group, so there may be fewer groups.
    """
    tokens = table["prompt_tokens"].astype("i8") + table["output_tokens"]
    if len(tokens) == 0:
        return tokens, []
    edges = np.quantile(tokens, np.arange(1, LENGTH_GROUPS) / LENGTH_GROUPS, method="inverted_cdf")
    group = np.unique(np.searchsorted(edges, tokens), return_inverse=True)[1]
    ranges = [tokens[group == one] for one in range(group.max() + 1)]
    return group, [f"{these.min()} to {these.max()} tokens" for these in ranges]

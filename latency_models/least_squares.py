"""Non-negative least squares on relative error, and design columns that make the fitted curve rise."""

from collections.abc import Sequence

import numpy as np


def fit_relative(design: np.ndarray, duration_s: np.ndarray) -> np.ndarray:
    """Weights w >= 0, float64[p], that minimise the sum of squares of (design @ w) / duration_s - 1.

    design: float64[n, p], 0 or above. duration_s: float64[n], above 0. The error is relative, as with absolute errors
    the few longest batches would determine the fit.
    """
    from scipy.optimize import nnls

    rows = design / duration_s[:, None]
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    weights, _ = nnls(rows / scale, np.ones(len(rows)), maxiter=50 * rows.shape[1])
    return weights / scale


def rising(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """float64[n, knots]: a column of ones, then for each segment the share that x, float64[n], has passed (0 to 1;
    beyond 1 for the last).

    With weights of 0 or above, the weighted sum never falls in x, and is linear between the knots, float64[k].
    """
    walked = (x[:, None] - knots[:-1]) / np.diff(knots)
    walked[:, :-1] = walked[:, :-1].clip(max=1.0)
    return np.column_stack([np.ones(len(x)), walked.clip(min=0.0)])


def reached(x: np.ndarray, knots: Sequence[float]) -> np.ndarray:
    """The first knots, two or more, that x, float64[n], determines. x has to reach the middle of the last segment,
    whose slope is extrapolated, as tokens past it would else take no time."""
    rising_knots = np.array(knots, dtype=float)
    kept = 1 + int(np.count_nonzero((rising_knots[:-1] + rising_knots[1:]) / 2 <= x.max()))
    return rising_knots[: max(kept, 2)]

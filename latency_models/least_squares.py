"""Non-negative least squares on relative error, and design columns that make the fitted curve rise."""

from collections.abc import Sequence

import numpy as np


def fit_relative(design: np.ndarray, duration_s: np.ndarray) -> np.ndarray:
    """Weights w >= 0, float64[p], least in the sum of squares of (design @ w) / duration_s - 1.

    design: float64[n, p], 0 or above. duration_s: float64[n], above 0. Relative, because an absolute error
    lets the few longest batches decide and misjudges the short ones.
    """
    from scipy.optimize import nnls

    rows = design / duration_s[:, None]
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    weights, _ = nnls(rows / scale, np.ones(len(rows)), maxiter=50 * rows.shape[1])
    return weights / scale


def rising(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """float64[n, knots]: a one, then how far x float64[n] has passed each segment (0 to 1; the last goes beyond 1).

    With weights of 0 or above the weighted sum never falls in x; it is linear between the knots, float64[k].
    """
    walked = (x[:, None] - knots[:-1]) / np.diff(knots)
    walked[:, :-1] = walked[:, :-1].clip(max=1.0)
    return np.column_stack([np.ones(len(x)), walked.clip(min=0.0)])


def reached(x: np.ndarray, knots: Sequence[float]) -> np.ndarray:
    """The first knots, two or more, that x float64[n] determines: beyond the last one the last slope goes on, so x must
    fill half of the last segment, or what is past it would cost nothing."""
    rising_knots = np.array(knots, dtype=float)
    kept = 1 + int(np.count_nonzero((rising_knots[:-1] + rising_knots[1:]) / 2 <= x.max()))
    return rising_knots[: max(kept, 2)]

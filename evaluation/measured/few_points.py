"""How many measured points of a configuration a calibration needs: fitted to a few of them, judged on the others."""

from __future__ import annotations

import numpy as np
import pandas as pd

FITTED = (0, 1, 2, 3, 5)
LEAST_POINTS = 10  # of a configuration
DRAWS = 200


def calibration(measured_s: np.ndarray, simulated_s: np.ndarray, clients: np.ndarray) -> tuple[float, float]:
    """Of TPOT: (factor of the simulated time, seconds a client), neither negative; least squares of relative errors.

    Of one point only the factor is fitted, of none neither.
    """
    from scipy.optimize import nnls

    if not len(measured_s):
        return 1.0, 0.0
    terms = np.column_stack([simulated_s, clients])[:, : min(2, len(measured_s))]
    found = nnls(terms / measured_s[:, None], np.ones(len(measured_s)))[0]
    return float(found[0]), float(found[1]) if len(found) > 1 else 0.0


def errors_left(points: pd.DataFrame, fitted: int, draws: int = DRAWS) -> float:
    """Median absolute error of TPOT, percent, of the points that a draw did not fit; mean over draws of so many."""
    measured, simulated, clients = (points[name].to_numpy(float) for name in ("tpot_s", "simulated_tpot_s", "clients"))
    random, medians = np.random.default_rng(0), []
    for _ in range(draws if fitted else 1):
        order = random.permutation(len(points))
        fit, judged = order[:fitted], order[fitted:]
        factor, client_s = calibration(measured[fit], simulated[fit], clients[fit])
        found = factor * simulated[judged] + client_s * clients[judged]
        medians.append(np.median(np.abs(found / measured[judged] - 1)))
    return 100 * float(np.mean(medians))


def curves(points: pd.DataFrame) -> pd.DataFrame:
    """Index: model and configuration, of LEAST_POINTS and more; columns: `errors_left` after so many fitted."""
    rows = {
        key: {fitted: errors_left(group, fitted) for fitted in FITTED}
        for key, group in points.groupby(["model", "configuration"])
        if len(group) >= LEAST_POINTS
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(FITTED))

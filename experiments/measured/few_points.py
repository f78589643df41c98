"""How many measured points of a configuration a calibration needs: fitted to a few of them, judged on the others."""

import numpy as np
import pandas as pd

from servegym.evaluation.markdown import table
from servegym.evaluation.measured.figures import HEADLINE

FITTED = (0, 1, 2, 3, 5)
LEAST_POINTS = 10  # of a configuration
DRAWS = 200
CALIBRATED = """## Calibrated to a few points of its own

What one's own measurements would give. Of each configuration with ten points and more, so many drawn at random are
fitted, and the others are judged: a factor of the simulated TPOT (from one point on) and a time a client (from two on),
neither negative. Median absolute error of TPOT, percent, mean over {draws} draws. These figures are apart from all
others on this page, in which nothing is fitted.
"""
ENOUGH = "Of {count} configurations with so many fitted: 5 % or less left in {within}; worse than without in {worse}."


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


def section(errors: pd.DataFrame) -> str:
    """The part of the page: what is left after a calibration to a few points of a configuration."""
    left = curves(errors[errors["case"] == HEADLINE])
    rows = [
        [f"{model.split('/')[-1]}, {configuration}", *(f"{one:.1f}" for one in line)]
        for (model, configuration), line in zip(left.index, left.to_numpy(), strict=True)
    ]
    rows.append(["median", *(f"{one:.1f}" for one in left.median())])
    within, worse = ((left <= 5).sum(), left.gt(left[0], axis=0).sum())
    said = ENOUGH.format(
        count=len(left),
        within=", ".join(f"{count} ({fitted})" for fitted, count in within.items()),
        worse=", ".join(f"{count} ({fitted})" for fitted, count in worse.items() if fitted),
    )
    heads = ("configuration", *(f"{fitted} fitted" for fitted in left.columns))
    return f"{CALIBRATED.format(draws=DRAWS)}\n{table(heads, rows)}\n{said}\n"

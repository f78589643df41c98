"""Whether a simulation ranks configurations as measured, and what choosing by it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

LIMITS_S = (0.015, 0.020, 0.030, 0.050)  # of TPOT
SAME = ("model", "isl", "osl", "clients")
ORDERED_BY = ("tpot", "ttft", "throughput")  # by throughput: higher is better
LEAST_ORDERED = 3  # with two the order is right or wrong: tau is 1 or -1


def with_throughput(points: pd.DataFrame) -> pd.DataFrame:
    """Adds requests/s a GPU of a closed loop without pauses: clients / (TTFT + (osl - 1) TPOT) / GPUs."""
    added = {}
    for prefix in ("", "simulated_"):
        round_s = points[f"{prefix}ttft_s"] + (points["osl"] - 1) * points[f"{prefix}tpot_s"]
        added[f"{prefix}throughput"] = points["clients"] / round_s / points["tp"]
    return points.assign(**added)


def tau(measured: Sequence[float] | np.ndarray, simulated: Sequence[float] | np.ndarray) -> float:
    """Kendall's tau-b; nan if all values of one argument are equal."""
    from scipy.stats import kendalltau

    return float(kendalltau(measured, simulated).statistic)


def apart(values: np.ndarray) -> np.ndarray:
    """Difference (first minus second) of each pair of n values, float64[n (n - 1) / 2]."""
    first, second = np.triu_indices(len(values), 1)
    return np.asarray(values)[first] - np.asarray(values)[second]


def pairs(measured: np.ndarray, simulated: np.ndarray) -> tuple[int, int]:
    """Of the pairs with different measured values: the number that the simulation orders alike, and the number of
    all.
    """
    order, found = np.sign(apart(measured)), np.sign(apart(simulated))
    return int(((order == found) & (order != 0)).sum()), int((order != 0).sum())


def regret(measured: np.ndarray, simulated: np.ndarray, higher: bool) -> float:
    """By how many percent the measured value of the simulated best is worse than the measured best; 0: the same
    choice.
    """
    sign = 1.0 if higher else -1.0
    chosen, best = (measured[int(np.argmax(sign * values))] for values in (simulated, measured))
    return float(100 * sign * (1 - chosen / best)) + 0.0  # no -0.0


def columns_of(metric: str) -> tuple[str, str]:
    """Names of the measured and the simulated column of a metric."""
    unit = "" if metric == "throughput" else "_s"
    return f"{metric}{unit}", f"simulated_{metric}{unit}"


def configurations(points: pd.DataFrame) -> Iterator[tuple[tuple[object, ...], pd.DataFrame]]:
    """Groups of two and more configurations with the same model, lengths and number of clients.

    Each is one row: where one was measured several times, the means.
    """
    same = with_throughput(points).groupby([*SAME, "configuration"], sort=False).mean(numeric_only=True)
    for key, group in same.reset_index().groupby(list(SAME), sort=False):
        if len(group) > 1:
            yield tuple(key), group


def orders(points: pd.DataFrame) -> pd.DataFrame:
    """One row a group of `configurations` and metric: size, tau, right, pairs, regret (percent)."""
    rows = []
    for key, group in configurations(points):
        for metric in ORDERED_BY:
            measured, simulated = (group[column].to_numpy() for column in columns_of(metric))
            right, count = pairs(measured, simulated)
            worse = regret(measured, simulated, metric == "throughput")
            rows.append((*key, metric, len(group), tau(measured, simulated), right, count, worse))
    return pd.DataFrame(rows, columns=[*SAME, "metric", "size", "tau", "right", "pairs", "regret"])


@dataclass(frozen=True)
class Choice:
    """What is chosen under a limit. regret: percent of throughput a GPU, where the chosen keeps the limit, else nan.

    over: by how many percent the chosen misses the limit; 0: it keeps it. none: the simulation finds nothing that does.
    """

    limit_s: float
    right: bool
    regret: float
    over: float
    none: bool


def choose(points: pd.DataFrame, limit_s: float) -> Choice | None:
    """The most throughput a GPU with a TPOT of at most limit_s, by simulation; None: nothing measured keeps it.

    points: as `with_throughput` gives them.
    """
    measured = points[points["tpot_s"] <= limit_s]
    if not len(measured):
        return None
    found = points[points["simulated_tpot_s"] <= limit_s]
    if not len(found):
        return Choice(limit_s, False, np.nan, 0.0, True)
    chosen, best = found["simulated_throughput"].idxmax(), measured["throughput"].idxmax()
    over = max(0.0, float(100 * (points["tpot_s"][chosen] / limit_s - 1)))
    lost = float(100 * (1 - points["throughput"][chosen] / points["throughput"][best]))
    return Choice(limit_s, bool(chosen == best), np.nan if over else lost, over, False)


def choices(points: pd.DataFrame, by: Sequence[str], least: int = 2) -> list[Choice]:
    """`choose` in each group of so many points and more, under each of LIMITS_S that not all or none of them keep."""
    found = []
    for _, group in with_throughput(points).groupby(list(by), sort=False):
        for limit_s in LIMITS_S:
            kept = int((group["tpot_s"] <= limit_s).sum())
            if len(group) >= least and 0 < kept < len(group):
                choice = choose(group, limit_s)
                assert choice is not None
                found.append(choice)
    return found

"""How far of the way from one scheduler to the best run that was found do others come? Means of TDG ratios, by load.

    servegym headroom --panel headroom --out results/headroom-page
    python -m experiments.halfway results/headroom-page/headroom.csv TUNED

    servegym evaluate --panel leaderboard --out results/leaderboard --scheduler NAME ... --scheduler TUNED
    python -m experiments.halfway results/leaderboard/runs.parquet TUNED

The best run of a scenario of the panels score and leaderboard is in the table that scores are held against.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.errors import ExperimentError, ServegymError
from servegym.evaluation.headroom.study import BOUND, FOUND
from servegym.evaluation.markdown import table
from servegym.evaluation.panels.statistics import bootstrap
from servegym.evaluation.panels.tables import TDG, by_cell
from servegym.evaluation.scoring.cases import best_found
from servegym.scenarios.values import load_title

POLICY = "policy"


def rows_of(path: Path) -> pd.DataFrame:
    """Columns trace, device, load, seed, policy, tdg_ratio; of the best found too, as `FOUND`.

    Raises ExperimentError for runs of scenarios that no search has been through.
    """
    if path.suffix == ".csv":
        rows = pd.read_csv(path)
        return rows[rows[POLICY] != BOUND]
    runs = pd.read_parquet(path)
    found = runs[runs[POLICY] == runs[POLICY].iloc[0]].assign(
        policy=FOUND, tdg_ratio=lambda one: one["workload"].map(best_found())
    )
    if unknown := int(found[TDG].isna().sum()):
        raise ExperimentError(f"{path}: no best run is known of {unknown} scenarios; take panel score or leaderboard")
    return pd.concat([runs, found], ignore_index=True)


def share_of_way(scores: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(mean - start's) / (end's - start's); each float64[..., cells, seeds], resampled on the first axes."""
    means = (one.mean(axis=(-2, -1)) for one in (scores, start, end))
    own, first, last = means
    return np.asarray((own - first) / (last - first))


def ways(rows: pd.DataFrame, start: str) -> str:
    """A Markdown table: TDG ratio of each, and how far of the way it comes, by load and over all.

    Raises ExperimentError where `start` is not among the rows.
    """
    names = list(dict.fromkeys(rows[POLICY]))
    if start not in names:
        raise ExperimentError(f"{start} is not among {', '.join(names)}")
    groups = [*((load_title(load), of) for load, of in rows.groupby("load", sort=False)), ("all", rows)]
    lines = []
    for name in names:
        cells = []
        for _, of in groups:
            scores, first, last = (by_cell(of[of[POLICY] == one], TDG) for one in (name, start, FOUND))
            way = "" if name in (start, FOUND) else ": " + in_words(scores, first, last)
            cells.append(f"{scores.mean():.4f}{way}")
        lines.append([f"`{name}`" if name != FOUND else FOUND, *cells])
    return table(["", *(title for title, _ in groups)], lines)


def in_words(scores: np.ndarray, start: np.ndarray, end: np.ndarray) -> str:
    share = bootstrap(share_of_way, scores, start, end)
    interval = "" if np.isnan(share.low) else f" ({100 * share.low:.0f} to {100 * share.high:.0f})"
    return f"{100 * share.mean:.0f} %{interval}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", type=Path, help="headroom.csv of `servegym headroom`, or runs.parquet of an evaluation")
    parser.add_argument("start", help="the label of the scheduler from which the way is counted")
    asked = parser.parse_args(arguments)
    try:
        print(ways(rows_of(asked.rows), asked.start))
    except ServegymError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

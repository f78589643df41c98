"""The best runs that a search of routers finds in the scenarios of their panels, for the leaderboard.

    python -m experiments.leaderboard.searched --budget 800 --ledgers results/headroom

Goes on from what the ledgers have (from nothing: 16 minutes of processor time) and writes `FOUND`.
"""

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.best_found import searches, write_rows
from experiments.leaderboard.entry import read_entry
from servegym.evaluation.headroom.kept import run_again
from servegym.evaluation.headroom.search import BASES
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.panels.panel import load_panel

FOUND = Path(__file__).with_name("searched.csv")
PANELS = ("session_fleet", "mixed_fleet")
FIGURES = ("tdg_ratio", "slo_attainment", "starved")
COLUMNS = ("panel", "rate", "seed", "runs", *FIGURES)
BASELINES = (
    "router-{panel}-min-load",
    "router-{panel}-gorouting",
)  # a score is the TDG ratio over the higher one of these


class Searched(NamedTuple):
    """What was found on a panel. score: as of an entry. figures: means of `FIGURES`."""

    score: float
    figures: dict[str, float]


def search_panel(panel: str, budget: int, ledgers: Path) -> list[dict[str, str]]:
    """Search every scenario of a panel, and return its rows of the table, in the order of the panel."""
    rows = []
    for case, best in searches(Headroom(load_panel(panel), BASES, "router"), budget, ledgers):
        summary = run_again(case, best).summary
        figures = (f"{summary[name]:.6f}" for name in FIGURES)
        cells = (panel, f"{case.identity['rate_per_s']:.6g}/s", case.identity["seed"], best.evaluations, *figures)
        rows.append(dict(zip(COLUMNS, map(str, cells), strict=True)))
    return rows


def searched(panel: str) -> Searched | None:
    """Read what was found on a panel; None: it was not searched."""
    with FOUND.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == panel]
    if not rows:
        return None
    figures = {name: np.array([float(row[name]) for row in rows]) for name in FIGURES}
    baselines = [read_entry(name.format(panel=panel)).tdg_ratios for name in BASELINES]
    score = float((figures["tdg_ratio"] / np.max(baselines, axis=0)).mean())
    return Searched(score, {name: float(values.mean()) for name, values in figures.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=800, help="runs of each search")
    parser.add_argument(
        "--ledgers", type=Path, default=Path("results/headroom"), help="folder that searches go on from"
    )
    given = parser.parse_args()
    rows = [row for panel in PANELS for row in search_panel(panel, given.budget, given.ledgers)]
    write_rows(FOUND, COLUMNS, rows)


if __name__ == "__main__":
    main()

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
from experiments.leaderboard.entry import TOLERANCE, code_of, read_entry
from servegym.baselines import registry
from servegym.errors import ExperimentError
from servegym.evaluation.headroom.cases import score_identity, search_identity
from servegym.evaluation.headroom.kept import run_again, search_all
from servegym.evaluation.headroom.search import BASES
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.identity import document_digest
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.running import ThreadRunner
from servegym.simulator.policies.gains import Gain

FOUND = Path(__file__).with_name("searched.csv")
PANELS = ("session_fleet", "mixed_fleet")
FIGURES = ("tdg_ratio", "slo_attainment", "starved")
COLUMNS = ("panel", "rate", "seed", "runs", *FIGURES, "code")
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
    rows, code = [], code_of_search(panel)
    for case, best in searches(Headroom(load_panel(panel), BASES, "router"), budget, ledgers):
        summary = run_again(case, best).summary
        figures = (f"{summary[name]:.6f}" for name in FIGURES)
        rate, seed = f"{case.identity['rate_per_s']:.6g}/s", case.identity["seed"]
        cells = (panel, rate, seed, best.evaluations, *figures, code)
        rows.append(dict(zip(COLUMNS, map(str, cells), strict=True)))
    return rows


def code_of_search(panel: str) -> str:
    """Digest of what a search has now on a panel: scenarios, the policies it begins with and the one beside them, the
    sources of the search and of its score. As with an entry, not of the event loop.
    """
    asked = load_panel(panel)
    policies = [registry.router(name) for name in BASES]
    return document_digest(
        {
            "panel": asked.to_json(),
            "code": [code_of(name, "router") for name in BASES] + [code_of(asked.spec["scheduler"], "scheduler")],
            "defaults": [repr(policy.chosen()) for policy in policies],
            "search": search_identity("router"),
            "score": score_identity(Gain(), "router"),
        },
        16,
    )


def rows_of(panel: str) -> list[dict[str, str]]:
    """Read the rows of a panel, in the order of its scenarios."""
    with FOUND.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["panel"] == panel]


def searched(panel: str) -> Searched | None:
    """Read what was found on a panel; None: it was not searched."""
    rows = rows_of(panel)
    if not rows:
        return None
    figures = {name: np.array([float(row[name]) for row in rows]) for name in FIGURES}
    baselines = [read_entry(name.format(panel=panel)).tdg_ratios for name in BASELINES]
    score = float((figures["tdg_ratio"] / np.max(baselines, axis=0)).mean())
    return Searched(score, {name: float(values.mean()) for name, values in figures.items()})


def stale() -> list[str]:
    """Return a line for each panel that was searched with other code than the present one."""
    lines = []
    for panel in PANELS:
        codes = {row["code"] for row in rows_of(panel)}
        if codes == {""}:
            lines.append(f"best found on {panel}: not checked, as it is not known what it was searched with")
        elif codes - {code_of_search(panel)}:
            lines.append(
                f"best found on {panel}: searched with other code than there is; "
                "python -m experiments.leaderboard.searched searches again"
            )
    return lines


def verify_search(panel: str, ledgers: Path, scenario: int = 0) -> None:
    """Search a scenario of a panel again. Raises ExperimentError if it finds something else."""
    case, row = Headroom(load_panel(panel), BASES, "router").cases[scenario], rows_of(panel)[scenario]
    (best,) = search_all([case], ledgers, int(row["runs"]), runner=ThreadRunner())
    summary = run_again(case, best).summary
    for name in FIGURES:
        if abs(summary[name] - float(row[name])) > TOLERANCE:
            raise ExperimentError(
                f"the search of {panel}, seed {row['seed']}, finds a {name} of {summary[name]:.6f}, not {row[name]}; "
                "search again"
            )


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

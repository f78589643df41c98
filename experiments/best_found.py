"""Write the table of the best runs that a search with foresight found in the scenarios of panels, for scores.

python -m experiments.best_found --panel score --budget 500
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from servegym.evaluation.headroom.cases import Case
from servegym.evaluation.headroom.kept import Found, search_all
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.running import ThreadRunner
from servegym.evaluation.scoring.cases import BEST_RUNS, best_rows

COLUMNS = ("panel", "trace", "device", "rate", "seed", "workload", "runs", "tdg_ratio")


def searches(asked: Headroom, budget: int, ledgers: Path) -> Iterator[tuple[Case, Found]]:
    """Search every scenario of a panel, on from what the ledgers have, and yield each with what was found."""

    def show(done: int, runs: int) -> None:
        print(f"\r{asked.panel.name}: {done} of {runs} runs", end="", file=sys.stderr)

    yield from zip(asked.cases, search_all(asked.cases, ledgers, budget, show, ThreadRunner()), strict=True)


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Write a table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def found_in(panel: str, budget: int, ledgers: Path) -> list[dict[str, str]]:
    """Search every scenario of a panel, and return its rows of the table."""
    rows = []
    for case, best in searches(Headroom(load_panel(panel), ("expected-gain",)), budget, ledgers):
        of, scenario = case.identity, case.scenario
        ideal = float(scenario.gain.ideal(scenario.workload).sum())
        cells = (
            panel, of["trace"], of["device"], f"{of['rate_per_s']:.6g}/s", of["seed"], scenario.workload.digest,
            best.evaluations, f"{best.score / ideal:.6f}",
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, map(str, cells), strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panel", action="append", help="whose rows to write anew (default: score and leaderboard)")
    parser.add_argument("--budget", type=int, default=500, help="runs of each search")
    parser.add_argument(
        "--ledgers", type=Path, default=Path("results/headroom"), help="folder that searches go on from"
    )
    given = parser.parse_args()
    panels = given.panel or ["score", "leaderboard"]
    new = [row for panel in panels for row in found_in(panel, given.budget, given.ledgers)]
    rows = [row for row in best_rows() if row["panel"] not in panels] + new
    write_rows(BEST_RUNS, COLUMNS, rows)


if __name__ == "__main__":
    main()

"""What a search with foresight found in each scenario of some panels: the table, and the command that writes it.

python -m servegym.evaluation.scoring.best_found --panel score --budget 500
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from pathlib import Path

from servegym.evaluation.headroom.kept import search_all
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.panels.panel import load_panel
from servegym.simulator.inputs.scenario import Scenario

TABLE = Path(__file__).with_name("best_found.csv")
COLUMNS = ("panel", "trace", "device", "rate", "seed", "workload", "runs", "tdg_ratio")


@functools.cache
def best_found() -> dict[str, float]:
    """The TDG ratio of the best run that was found, by `key_of` its scenario."""
    return {row["workload"]: float(row["tdg_ratio"]) for row in rows_in()}


def rows_in() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key_of(scenario: Scenario) -> str:
    """What a scenario of a panel is known by: its requests, which no two have in common."""
    return scenario.workload.digest


def found_in(panel: str, budget: int, ledgers: Path) -> list[dict[str, str]]:
    """Search every scenario of a panel, on from what the ledgers have: its rows of the table."""
    asked = Headroom(load_panel(panel), ("expected-gain",))

    def tell(done: int, runs: int) -> None:
        print(f"\r{panel}: {done} of {runs} runs", end="", file=sys.stderr)

    rows = []
    for case, best in zip(asked.cases, search_all(asked.cases, ledgers, budget, tell), strict=True):
        of, scenario = case.identity, case.scenario
        ideal = float(scenario.gain.ideal(scenario.workload).sum())
        numbers = (
            f"{of['rate_per_s']:.6g}/s",
            of["seed"],
            key_of(scenario),
            best.evaluations,
            f"{best.gain / ideal:.6f}",
        )
        rows.append(dict(zip(COLUMNS, map(str, (panel, of["trace"], of["device"], *numbers)), strict=True)))
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
    rows = [row for row in rows_in() if row["panel"] not in panels] + new
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()

"""What a search with foresight found in each scenario of the panel `score`: the table, and the command that writes it.

    python -m servegym.evaluation.scoring.best_found --budget 500
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from servegym.evaluation.headroom.kept import search_all
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.panels.panel import load_panel
from servegym.simulator.scenario import Scenario

PANEL = "score"
TABLE = Path(__file__).with_name("best_found.csv")
COLUMNS = ("trace", "device", "rate", "seed", "workload", "runs", "tdg_ratio")


def best_found() -> dict[str, float]:
    """The TDG ratio of the best run that was found, by `key_of` its scenario."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["workload"]: float(row["tdg_ratio"]) for row in csv.DictReader(file)}


def key_of(scenario: Scenario) -> str:
    """What a scenario of the panel is known by: its requests, which no two have in common."""
    return scenario.workload.digest


def write(budget: int, ledgers: Path) -> None:
    """Search every scenario of the panel, on from what the ledgers have, and write the table."""
    asked = Headroom(load_panel(PANEL), ("expected-gain",))

    def tell(done: int, runs: int) -> None:
        print(f"\r{done} of {runs} runs", end="", file=sys.stderr)

    found = search_all(asked.cases, ledgers, budget, tell)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for case, best in zip(asked.cases, found, strict=True):
            of, scenario = case.identity, case.scenario
            ideal = float(scenario.gain.ideal(scenario.workload.table).sum())
            where = of["trace"], of["device"], f"{of['rate_per_s']:.6g}/s", of["seed"]
            rows.writerow([*where, key_of(scenario), best.evaluations, f"{best.gain / ideal:.6f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=500, help="runs of each search")
    parser.add_argument("--ledgers", type=Path, default=Path("results/headroom"), help="folder that searches go on from")
    given = parser.parse_args()
    write(given.budget, given.ledgers)


if __name__ == "__main__":
    main()

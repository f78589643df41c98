"""The table of best runs is of the panels that ship: a scenario that is drawn otherwise would be scored otherwise."""

import pytest

from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.scoring.cases import best_found, best_rows


@pytest.mark.parametrize("name", ["score", "leaderboard"])
def test_every_scenario_of_a_panel_has_a_row(name: str) -> None:
    panel = load_panel(name)
    rows = [row for row in best_rows() if row["panel"] == name]
    assert len(rows) == panel.cells * panel.seeds
    assert [int(row["seed"]) for row in rows] == list(range(panel.first_seed, panel.first_seed + len(rows)))
    # Those of its first trace and device, drawn again: the others take seconds.
    part = Evaluation(panel, ("edf", "sjf")).parts[0]
    drawn = [part.workloads[load, seed].digest for load in part.loads for seed in part.seeds_of(load)]
    assert drawn == [row["workload"] for row in rows[: len(drawn)]]
    assert all(0.0 < best_found()[digest] <= 1.0 for digest in drawn)

"""Figure 10 with and without online correction: what is served, and what is said of it."""

import numpy as np
import pandas as pd

from experiments import correction_fig10
from experiments.claims.harness.checks import ABOVE_0, HOLDS, Check
from experiments.claims.harness.settings import SHIFT, Size
from experiments.claims.proserve_fig10 import BASELINES, LOADS, WHOLE
from experiments.correction_figures import Pair

SIZE = Size("correction", ("azure-conv",), (correction_fig10.DEVICE,), (1, 2), 20, 3)


def rows(more: float) -> pd.DataFrame:
    """SlideBatching has so much more than each baseline, at every load."""
    cells = correction_fig10.cells_of("azure-conv", SIZE)
    return pd.DataFrame([
        {**cell._asdict(), "tdg_ratio": 0.5 + more * (cell.scheduler == WHOLE) + 0.01 * (cell.seed % SHIFT),
         "slo_attainment": 0.5 + more * (cell.scheduler == WHOLE) + 0.01 * (cell.seed % SHIFT)}
        for cell in cells
    ])  # fmt: skip


def test_all_of_the_claim_is_served_and_nothing_that_it_only_examines():
    cells = correction_fig10.cells_of("azure-conv", SIZE)
    assert len(cells) == len(set(cells)) == len(LOADS) * 2 * len(SIZE.seeds) * (1 + len(BASELINES))
    assert {cell.load for cell in cells} == set(LOADS) and {cell.requests for cell in cells} == {60}
    assert not any(cell.exact_estimator or cell.corrected for cell in cells)


def test_batches_are_those_of_the_paper():
    served = {correction_fig10.as_printed(cell).scheduler for cell in correction_fig10.cells_of("azure-conv", SIZE)}
    assert served == {"slide-batching:steps=ignore", *BASELINES}


def test_leads_and_what_correction_adds_to_them():
    checks = correction_fig10.checks_of(rows(0.2))
    assert all(check.verdict == HOLDS for check in checks if "over the best baseline" in check.name)
    found = correction_fig10.change(rows(0.1), rows(0.3))
    np.testing.assert_allclose(found.values, 0.2)
    assert found.verdict == HOLDS


def test_every_check_is_shown_and_those_that_turn_are_counted():
    good, bad = Check("a lead", np.array([1.0, 1.1]), ABOVE_0), Check("a lead", np.array([-1.0, -1.1]), ABOVE_0)
    lines = correction_fig10.tables({"one": [Pair("one", good, bad), Pair("one", good, good)]})
    assert lines[2] == "| one | 2 / 0 / 0 | 1 / 0 / 1 | 1 | 1 |"
    assert len([line for line in lines if "a lead" in line]) == 2

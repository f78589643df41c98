"""Claims with and without online correction: what differs is counted and shown."""

import numpy as np

from experiments.claims.harness.cells import Cell, scenario
from experiments.claims.harness.checks import ABOVE_0, Check, Range
from experiments.claims.harness.settings import Size
from experiments.correction_figures import LITTLE, Pair, changes_table, claims_table, page

SIZE = Size("correction", ("azure-conv",), ("ascend910b-qwen3-8b",), (1, 2), 60)


def check(*values: float, expected: Range = ABOVE_0, name: str = "a lead") -> Check:
    return Check(name, np.array(values), expected)


def test_a_cell_is_corrected_where_it_says_so():
    cell = Cell("azure-conv", "ascend910b-qwen3-8b", "slide-batching", 1.0, 1, 10)
    assert scenario(cell).correction is None and scenario(cell._replace(corrected=True)).correction is not None


def test_verdicts_that_differ_are_counted_and_shown():
    good, bad, open_ = check(1.0, 1.1), check(-1.0, -1.1), check(-1.0, 1.0)
    pairs = [Pair("a", good, good), Pair("a", good, bad), Pair("b", good, open_)]
    assert claims_table(pairs)[2:] == ["| [a](a.md) | 2 / 0 / 0 | 1 / 0 / 1 | 1 | 1 |",
                                       "| [b](b.md) | 1 / 0 / 0 | 0 / 1 / 0 | 1 | 0 |"]  # fmt: skip
    assert len(changes_table(pairs)) == 4 and "holds" in changes_table(pairs)[2] and "fails" in changes_table(pairs)[2]


def test_a_change_of_a_lead_is_judged():
    leads = [check(0.1, 0.1, name="lead"), check(0.105, 0.106, name="with"),
             check(0.005, 0.006, expected=LITTLE, name="change, load 1")]  # fmt: skip
    assert "| Figure 11 | +0.1000 | +0.1055" in (text := page([], {"Figure 11": leads}, SIZE))
    assert "| holds |" in text

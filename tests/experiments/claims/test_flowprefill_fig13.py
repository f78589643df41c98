"""TTFT as a polynomial predicts it: right where nobody waits, too low where the prefill engine is overloaded."""

import pytest

from experiments.claims.flowprefill_fig13 import OF_THE_FIGURE, measure, predictor
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.first_tokens import ONE_AND_ONE


@pytest.mark.parametrize("device", OF_THE_FIGURE)
def test_the_polynomial_follows_the_profile(device):
    fitted, off_percent = predictor(device)
    assert fitted.form == "polynomial" and 0 < off_percent < 10


def test_predictions_are_of_a_request_that_does_not_wait():
    cell = Cell("flowprefill", OF_THE_FIGURE[0], "flow-prefill", 0.01, 1, 50, engines=ONE_AND_ONE)
    idle, overloaded = measure(cell), measure(cell._replace(load=3.0))
    assert idle["close"] > 0.9 and idle["outliers"] < 0.05 and idle["over_p50"] == pytest.approx(1, abs=0.1)
    assert overloaded["outliers"] > 0.5

"""`piecewise-mixed`, with time for each request of a batch.

Between two steps a synchronous engine schedules, prepares inputs and processes outputs for each request; a model of
states reads and writes the state of each.
"""

import numpy as np

from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.forms import piecewise, piecewise_mixed
from servegym.simulator.records.signatures import latency

piecewise_s = piecewise.piecewise_s
A_M, B_M = piecewise_mixed.A_M, piecewise_mixed.B_M
T_R, T_C, KNOTS = range(7, 10)


@latency
def batch_s(batch, coefficients):
    seconds = piecewise_s(batch, coefficients, T_C, KNOTS)
    if batch.decode_requests > 0 and batch.prefill_requests > 0:
        seconds += coefficients[A_M] * batch.decode_cached_tokens + coefficients[B_M] * batch.decode_requests
    return seconds + coefficients[T_R] * (batch.prefill_requests + batch.decode_requests)


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    requests = batches["prefill_requests"] + batches["decode_requests"]
    return piecewise.fit_terms(batches, duration_s, piecewise_mixed.beside(batches) | {"t_r": requests})


FORM = LatencyForm(
    name="piecewise-requests",
    equation="as piecewise-mixed + t_r (prefills + decodes)",
    batch_s=batch_s,
    coefficients=(
        *piecewise_mixed.FORM.coefficients[:7],
        Coefficient("t_r", "s", "a request of the batch: the engine's CPU time for it, or its state read and written"),
        *piecewise_mixed.FORM.coefficients[7:],
    ),
    constant="t_c",
    scaled=("a_p", "b_p", "f_p", "a_d", "f_d", "a_m", "b_m", "t_r", "t_c", "base_s"),
    cannot=piecewise.FORM.cannot,
    fit=_fit,
    check=piecewise.FORM.check,
)

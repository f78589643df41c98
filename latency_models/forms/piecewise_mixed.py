"""`piecewise`, with a higher cost of decodes in a batch that has prefills too.

The attention kernel for mixed batches treats a decode as a prefill of one token: in the tables of RTX 4090 and RTX PRO
6000 it takes two to three times as long to read keys as the kernel for decodes alone.
"""

import numpy as np

from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.forms import piecewise
from servegym.simulator.records.signatures import latency

piecewise_s = piecewise.piecewise_s
A_M, B_M, T_C, KNOTS = range(5, 9)  # after piecewise's coefficients of attention


@latency
def batch_s(batch, coefficients):
    seconds = piecewise_s(batch, coefficients, T_C, KNOTS)
    if batch.decode_requests > 0 and batch.prefill_requests > 0:
        seconds += coefficients[A_M] * batch.decode_cached_tokens + coefficients[B_M] * batch.decode_requests
    return seconds


def beside(batches: np.ndarray) -> dict[str, np.ndarray]:
    """The terms that a_m and b_m multiply, float64[n] each."""
    prefills = batches["prefill_requests"] > 0
    return {"a_m": prefills * batches["decode_cached_tokens"], "b_m": prefills * batches["decode_requests"]}


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    return piecewise.fit_terms(batches, duration_s, beside(batches))


FORM = LatencyForm(
    name="piecewise-mixed",
    equation="as piecewise + [any prefill] (a_m sum over decodes lkv + b_m decodes)",
    batch_s=batch_s,
    coefficients=(
        *piecewise.FORM.coefficients[:5],
        Coefficient("a_m", "s/token", "attention of a decode beside prefills to one cached token, beyond a_d"),
        Coefficient("b_m", "s", "a decode beside prefills, whatever it has cached"),
        *piecewise.FORM.coefficients[5:],
    ),
    constant="t_c",
    scaled=("a_p", "b_p", "f_p", "a_d", "f_d", "a_m", "b_m", "t_c", "base_s"),
    cannot=piecewise.FORM.cannot,
    fit=_fit,
    check=piecewise.FORM.check,
)

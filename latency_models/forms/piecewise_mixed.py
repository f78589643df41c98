"""`piecewise`, where decodes beside prefills cost more than decodes alone.

An attention kernel for batches of both kinds works on a decode as on a prefill of one token: in the tables of RTX 4090
and RTX PRO 6000 it reads keys two to three times as slowly as the kernel for decodes alone.
"""

import numpy as np

from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.forms import piecewise
from servegym.latency_models.least_squares import fit_relative, rising
from servegym.simulator.signatures import latency

interpolate = piecewise.interpolate
A_P, B_P, F_P, A_D, F_D, A_M, B_M, T_C, KNOTS = range(9)


@latency
def batch_s(batch, coefficients):
    tokens = batch.prefill_tokens + batch.decode_requests
    seconds = coefficients[T_C] + interpolate(tokens, coefficients, KNOTS + 1, int(coefficients[KNOTS]))
    if batch.prefill_requests > 0:
        seconds += (
            coefficients[A_P] * batch.prefill_tokens_squared
            + coefficients[B_P] * batch.prefill_tokens_cached
            + coefficients[F_P]
        )
    if batch.decode_requests > 0:
        seconds += coefficients[A_D] * batch.decode_cached_tokens + coefficients[F_D]
        if batch.prefill_requests > 0:
            seconds += coefficients[A_M] * batch.decode_cached_tokens + coefficients[B_M] * batch.decode_requests
    return seconds


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    prefills, decodes = batches["prefill_requests"] > 0, batches["decode_requests"] > 0
    attention = np.column_stack(
        [
            batches["prefill_tokens_squared"],
            batches["prefill_tokens_cached"],
            prefills,
            batches["decode_cached_tokens"],
            decodes,
            prefills * batches["decode_cached_tokens"],
            prefills * batches["decode_requests"],
        ]
    )
    tokens = batches["prefill_tokens"] + batches["decode_requests"]
    knots = piecewise.knots_reached(tokens)
    weights = fit_relative(np.hstack([attention, rising(tokens, knots)]), duration_s)
    names = ("a_p", "b_p", "f_p", "a_d", "f_d", "a_m", "b_m")
    return {
        **dict(zip(names, weights[:7].tolist(), strict=True)),
        "t_c": 0.0,
        "knots_tokens": knots.tolist(),
        "base_s": np.cumsum(weights[7:]).tolist(),
    }


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

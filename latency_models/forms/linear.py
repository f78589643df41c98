"""ProServe's latency model (Eq. 4-7): linear in the work of attention and of tokens."""

import numpy as np

from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.least_squares import fit_relative
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

A_P, B_P, C_P, A_D, B_D, T_C = range(6)


@latency
def batch_s(batch, coefficients):
    return (
        coefficients[A_P] * batch.prefill_tokens_squared
        + coefficients[B_P] * batch.prefill_tokens_cached
        + coefficients[C_P] * batch.prefill_tokens
        + coefficients[A_D] * batch.decode_cached_tokens
        + coefficients[B_D] * batch.decode_requests
        + coefficients[T_C]
    )


@kernel
def core_s(tokens, cached, decoding, coefficients):
    if decoding:
        return coefficients[A_D] * cached + coefficients[B_D]
    per_token = coefficients[A_P] * tokens + coefficients[B_P] * cached + coefficients[C_P]
    return per_token * tokens


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    design = np.column_stack(
        [
            batches["prefill_tokens_squared"],
            batches["prefill_tokens_cached"],
            batches["prefill_tokens"],
            batches["decode_cached_tokens"],
            batches["decode_requests"],
            np.ones(len(batches)),
        ]
    )
    weights = fit_relative(design, duration_s)
    return {c.name: float(w) for c, w in zip(FORM.coefficients, weights, strict=True)}


FORM = LatencyForm(
    name="linear",
    equation="sum over prefills (a_p lq^2 + b_p lq lkv + c_p lq) + sum over decodes (a_d lkv + b_d) + t_c",
    batch_s=batch_s,
    core_s=core_s,
    coefficients=(
        Coefficient("a_p", "s/token^2", "attention of a prefill chunk to itself"),
        Coefficient("b_p", "s/token^2", "attention of a prefill chunk to the tokens cached before it"),
        Coefficient("c_p", "s/token", "linear operators of a prefill token"),
        Coefficient("a_d", "s/token", "attention of a decode to one cached token"),
        Coefficient("b_d", "s", "linear operators of a decode"),
        Coefficient("t_c", "s", "constant part of a batch"),
    ),
    constant="t_c",
    scaled=("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"),
    cannot="that weights are read once a batch: the first tokens of a batch are as dear as the last",
    fit=_fit,
)

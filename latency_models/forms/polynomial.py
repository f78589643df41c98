"""FlowPrefill's TTFT predictor: a cubic polynomial of the prompt tokens of a batch."""

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.least_squares import fit_relative
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

C_3, C_2, C_1, T_C = range(4)


@kernel
def prefill_s(tokens, coefficients):
    return ((coefficients[C_3] * tokens + coefficients[C_2]) * tokens + coefficients[C_1]) * tokens


@kernel
def core_s(tokens, cached, decoding, coefficients):
    return 0.0 if decoding else prefill_s(float(tokens), coefficients)


@latency
def batch_s(batch, coefficients):
    return prefill_s(batch.prefill_tokens, coefficients) + coefficients[T_C]


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    decoding = np.count_nonzero(batches["decode_requests"])
    if decoding:
        raise ProfileError(
            f"form 'polynomial' has no time of a decode, and {decoding} of the {len(batches)} batches to fit hold "
            "some; leave them out or choose another form"
        )
    tokens = batches["prefill_tokens"]
    weights = fit_relative(np.column_stack([tokens**power for power in (3, 2, 1, 0)]), duration_s)
    return {c.name: float(w) for c, w in zip(FORM.coefficients, weights, strict=True)}


FORM = LatencyForm(
    name="polynomial",
    equation="c_3 n^3 + c_2 n^2 + c_1 n + t_c with n the prefill tokens of the batch",
    batch_s=batch_s,
    core_s=core_s,
    coefficients=(
        Coefficient("c_3", "s/token^3", "cubic part"),
        Coefficient("c_2", "s/token^2", "attention of the prompts to themselves"),
        Coefficient("c_1", "s/token", "linear operators of a prefill token"),
        Coefficient("t_c", "s", "constant part of a batch"),
    ),
    constant="t_c",
    scaled=("c_3", "c_2", "c_1", "t_c"),
    cannot="decodes, which take no time here: it is for prefill engines; nor tokens cached before a chunk, nor how "
    "a batch's tokens are shared among its requests",
    fit=_fit,
)

"""A piecewise-linear function of the batch's tokens for the linear operators, plus linear attention.

The time of a matrix product over N tokens is flat while it reads weights, then rises in steps of whole
waves of thread blocks; attention adds its own work, and a constant for each kind of attention present.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.knots import segment
from servegym.latency_models.least_squares import fit_relative, reached, rising
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

A_P, B_P, F_P, A_D, F_D, T_C, KNOTS = range(7)

# Two knots a few tokens apart are a step: another wave of thread blocks begins after a multiple of 64 or 128.
FIT_KNOTS = (
    1, 8, 16, 32, 64, 72, 96, 128, 136, 160, 192, 200, 256, 264, 320, 384, 392, 448, 512, 520, 640, 768,
    1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
)  # fmt: skip
STEP_SHARE = 1 / 8  # of a knot's tokens; a shorter segment is a step, whose slope is not extrapolated


@kernel
def interpolate(x, numbers, first_knot, count):
    """Interpolate at x between `count` knots at numbers[first_knot:], whose values follow after their length.

    Before the first knot the value is constant; past the last one the last slope continues.
    """
    first_value = first_knot + count + 1
    if x <= numbers[first_knot]:
        return numbers[first_value]
    low = segment(x, numbers, first_knot, count)
    left, below = numbers[first_knot + low], numbers[first_value + low]
    slope = (numbers[first_value + low + 1] - below) / (numbers[first_knot + low + 1] - left)
    return below + slope * (x - left)


@kernel
def piecewise_s(batch, coefficients, t_c, knots):
    """Seconds of a batch. t_c, knots: their places among the coefficients; those of attention come first."""
    tokens = batch.prefill_tokens + batch.decode_requests
    seconds = coefficients[t_c] + interpolate(tokens, coefficients, knots + 1, int(coefficients[knots]))
    if batch.prefill_requests > 0:
        seconds += (
            coefficients[A_P] * batch.prefill_tokens_squared
            + coefficients[B_P] * batch.prefill_tokens_cached
            + coefficients[F_P]
        )
    if batch.decode_requests > 0:
        seconds += coefficients[A_D] * batch.decode_cached_tokens + coefficients[F_D]
    return seconds


@latency
def batch_s(batch, coefficients):
    return piecewise_s(batch, coefficients, T_C, KNOTS)


def knots_reached(tokens: np.ndarray) -> np.ndarray:
    """The first of FIT_KNOTS, two or more, that batches with these token counts, float64[n], determine.

    The last segment, whose slope is extrapolated, must not be a step.
    """
    knots = reached(tokens, FIT_KNOTS)
    kept = len(knots)
    while kept > 2 and knots[kept - 1] - knots[kept - 2] < STEP_SHARE * knots[kept - 1]:
        kept -= 1
    return knots[: max(kept, 2)]


def fit_terms(
    batches: np.ndarray, duration_s: np.ndarray, more: Mapping[str, np.ndarray] = MappingProxyType({})
) -> Values:
    """Fit the coefficients. more: further terms of attention by coefficient, float64[n] each."""
    terms = {
        "a_p": batches["prefill_tokens_squared"],
        "b_p": batches["prefill_tokens_cached"],
        "f_p": batches["prefill_requests"] > 0,
        "a_d": batches["decode_cached_tokens"],
        "f_d": batches["decode_requests"] > 0,
        **more,
    }
    tokens = batches["prefill_tokens"] + batches["decode_requests"]
    knots = knots_reached(tokens)
    weights = fit_relative(np.hstack([np.column_stack([*terms.values()]), rising(tokens, knots)]), duration_s)
    return {
        **dict(zip(terms, weights[: len(terms)].tolist(), strict=True)),
        "t_c": 0.0,
        "knots_tokens": knots.tolist(),
        "base_s": np.cumsum(weights[len(terms) :]).tolist(),
    }


def _check(values: Values, where: str) -> None:
    knots, base = (np.asarray(values[name]) for name in ("knots_tokens", "base_s"))
    if len(knots) < 2 or len(knots) != len(base):
        raise ProfileError(
            f"{where}: {len(knots)} knots_tokens and {len(base)} base_s; they must be equally many, 2 or more"
        )
    for name, numbers, order in (("knots_tokens", knots, np.greater), ("base_s", base, np.greater_equal)):
        bad = np.flatnonzero(~order(numbers[1:], numbers[:-1]))
        if len(bad):
            before, after = numbers[bad[0]], numbers[bad[0] + 1]
            rule = "increase" if name == "knots_tokens" else "not fall"
            raise ProfileError(f"{where}: {name}[{bad[0] + 1}] is {after} after {before}; they must {rule}")


FORM = LatencyForm(
    name="piecewise",
    equation="base(prefill tokens + decodes) + a_p sum lq^2 + b_p sum lq lkv + f_p [any prefill] "
    "+ a_d sum over decodes lkv + f_d [any decode] + t_c",
    batch_s=batch_s,
    coefficients=(
        Coefficient("a_p", "s/token^2", "attention of prefill chunks to themselves"),
        Coefficient("b_p", "s/token^2", "attention of prefill chunks to the tokens cached before them"),
        Coefficient("f_p", "s", "constant of a batch with a prefill"),
        Coefficient("a_d", "s/token", "attention of a decode to one cached token"),
        Coefficient("f_d", "s", "constant of a batch with a decode"),
        Coefficient("t_c", "s", "constant part of a batch outside the fit: the engine's CPU overhead"),
        Coefficient("knots_tokens", "tokens", "where the slope of base changes", vector=True),
        Coefficient("base_s", "s", "time of the linear operators at the knots", vector=True),
    ),
    constant="t_c",
    scaled=("a_p", "b_p", "f_p", "a_d", "f_d", "t_c", "base_s"),
    cannot="how attention's time depends on how lengths are spread over the requests of a batch, beyond these sums; "
    "a request's share of base(N)",
    fit=fit_terms,
    check=_check,
)

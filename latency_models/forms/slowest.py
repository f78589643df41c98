"""Semantic scheduling's latency model: a batch takes as long as its slowest request."""

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.least_squares import fit_relative
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

ALPHA_1, ALPHA_2, GAMMA_1, GAMMA_2, T_C = range(5)


@kernel
def core_s(tokens, cached, decoding, coefficients):
    if decoding:
        return coefficients[GAMMA_1] * float(cached) + coefficients[GAMMA_2]
    return (coefficients[ALPHA_1] * float(tokens) + coefficients[ALPHA_2]) * float(tokens)


@latency
def batch_s(batch, coefficients):
    slowest_s = 0.0
    if batch.prefill_requests > 0:
        slowest_s = core_s(batch.longest_prefill_tokens, 0.0, False, coefficients)
    if batch.decode_requests > 0:
        slowest_s = max(slowest_s, core_s(1.0, batch.longest_decode_cached, True, coefficients))
    return slowest_s + coefficients[T_C]


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    """Fit each phase on batches of that phase alone: in a mixed batch the slower phase hides the other."""
    prefills, decodes = batches["prefill_requests"] > 0, batches["decode_requests"] > 0
    values = {"t_c": 0.0}
    for names, phase, length, power in (
        (("alpha_1", "alpha_2"), prefills & ~decodes, "longest_prefill_tokens", 2),
        (("gamma_1", "gamma_2"), decodes & ~prefills, "longest_decode_cached", 1),
    ):
        if phase.sum() < len(names):
            kind = "prefills" if power == 2 else "decodes"
            raise ProfileError(
                f"form 'slowest' is fitted to batches of one phase, and {phase.sum()} of the {len(batches)} batches "
                f"to fit are of {kind} only; it needs {len(names)} or more of each"
            )
        longest = batches[length][phase]
        weights = fit_relative(np.column_stack([longest**power, longest ** (power - 1)]), duration_s[phase])
        values |= dict(zip(names, weights.tolist(), strict=True))
    return values


FORM = LatencyForm(
    name="slowest",
    equation="max(alpha_1 n^2 + alpha_2 n of the longest prefill, gamma_1 lkv + gamma_2 of the longest decode) + t_c",
    batch_s=batch_s,
    core_s=core_s,
    coefficients=(
        Coefficient("alpha_1", "s/token^2", "attention of a prefill to itself"),
        Coefficient("alpha_2", "s/token", "linear operators of a prefill token"),
        Coefficient("gamma_1", "s/token", "attention of a decode to one cached token"),
        Coefficient("gamma_2", "s", "a decode step with nothing cached"),
        Coefficient("t_c", "s", "constant part of a batch"),
    ),
    constant="t_c",
    scaled=("alpha_1", "alpha_2", "gamma_1", "gamma_2", "t_c"),
    cannot="how many requests are in the batch (a second one no longer than the first is free) and tokens cached "
    "before a prefill chunk (a chunk takes what a whole prompt of its length takes)",
    fit=_fit,
)

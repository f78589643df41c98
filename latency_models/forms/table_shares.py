"""A latency table by tokens, KV and share of prefill: one table for all tokens, and one for the extra time of prefill.

For given tokens and KV the time is linear in the share of prefill. KV counts by how often it is read: once by a decode,
and `reads` times for each token of a chunk, since attention computes many queries with each key that it loads.
"""

import numpy as np

from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.forms import linear
from servegym.latency_models.forms.table import cell_of, check_table
from servegym.latency_models.knots import on_plane
from servegym.latency_models.least_squares import fit_relative, reached, rising
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

F_P, F_D, T_C, READS, TOKENS = range(5)

# Knots are close together where a batch's time has steps.
FIT_TOKENS = (1, 32, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048, 4096, 8192, 16384)
FIT_CACHED = (0, 4096, 16384, 65536, 131072, 262144, 524288)


@kernel
def look_up(prefilled, decoded, read, coefficients):
    """Seconds of prefilled and decoded tokens that read cached ones, without the constant part of a batch."""
    corner, columns, down, right = cell_of(prefilled + decoded, read, coefficients, TOKENS)
    rows = int(coefficients[TOKENS])
    seconds = on_plane(coefficients, corner, columns, down, right)
    if prefilled > 0.0:
        seconds += prefilled * on_plane(coefficients, corner + rows * columns + 1, columns, down, right)
    return seconds


@latency
def batch_s(batch, coefficients):
    pairs = batch.prefill_tokens_cached + batch.prefill_tokens_squared / 2.0
    read = batch.decode_cached_tokens + coefficients[READS] * pairs
    seconds = coefficients[T_C] + look_up(batch.prefill_tokens, batch.decode_requests, read, coefficients)
    if batch.prefill_requests > 0:
        seconds += coefficients[F_P]
    if batch.decode_requests > 0:
        seconds += coefficients[F_D]
    return seconds


@kernel
def core_s(tokens, cached, decoding, coefficients):
    """What the request alone adds to an empty batch."""
    empty_s = look_up(0.0, 0.0, 0.0, coefficients)
    if decoding:
        return coefficients[F_D] + look_up(0.0, 1.0, float(cached), coefficients) - empty_s
    computed = float(tokens)
    read = coefficients[READS] * computed * (cached + computed / 2.0)
    return coefficients[F_P] + look_up(computed, 0.0, read, coefficients) - empty_s


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    """Fit tables that rise in tokens, prefilled tokens and KV read. `reads` is that of a linear form, b_p / a_d; 1 if
    no batch determines it."""
    attention = linear.FORM.fit(batches, duration_s)  # type: ignore[misc]
    reads = min(1.0, attention["b_p"] / attention["a_d"]) if attention["a_d"] else 1.0  # type: ignore[operator]
    prefilled, decoded = batches["prefill_tokens"], batches["decode_requests"]
    pairs = batches["prefill_tokens_cached"] + batches["prefill_tokens_squared"] / 2
    computed, read = prefilled + decoded, batches["decode_cached_tokens"] + reads * pairs
    tokens, cached = reached(computed, FIT_TOKENS), reached(read, FIT_CACHED)
    rows, columns = rising(computed, tokens), rising(read, cached)
    cells = (rows[:, :, None] * columns[:, None, :]).reshape(len(batches), -1)
    design = np.column_stack([cells, prefilled[:, None] * cells, batches["prefill_requests"] > 0, decoded > 0])
    *weights, f_p, f_d = fit_relative(design, duration_s)
    table_s, prefill_s = np.reshape(weights, (2, len(tokens), len(cached))).cumsum(axis=1).cumsum(axis=2)
    return {
        "f_p": float(f_p),
        "f_d": float(f_d),
        "t_c": 0.0,
        "reads": float(reads),
        "tokens": tokens.tolist(),
        "cached_tokens": cached.tolist(),
        "table_s": table_s.ravel().tolist(),
        "prefill_s": prefill_s.ravel().tolist(),
    }


def _check(values: Values, where: str) -> None:
    check_table(values, where, "table_s")
    check_table(values, where, "prefill_s")


FORM = LatencyForm(
    name="table-shares",
    equation="table(N, KV read) + prefill tokens x prefill(N, KV read) + [any prefill] f_p + [any decode] f_d + t_c, "
    "KV read = sum over decodes lkv + reads sum over prefills (lq lkv + lq^2 / 2)",
    batch_s=batch_s,
    core_s=core_s,
    coefficients=(
        Coefficient("f_p", "s", "kernels of prefills, once a batch with any"),
        Coefficient("f_d", "s", "kernels of decodes, once a batch with any"),
        Coefficient("t_c", "s", "constant part of a batch outside the tables"),
        Coefficient("reads", "1", "how often a prefill reads a cached token, for each token of its chunk"),
        Coefficient("tokens", "tokens", "the tables' rows: tokens computed in the batch", vector=True),
        Coefficient("cached_tokens", "tokens", "the tables' columns: cached tokens that the batch reads", vector=True),
        Coefficient("table_s", "s", "time of decodes at each pair, row after row", vector=True),
        Coefficient("prefill_s", "s/token", "what a token adds if it is prefilled, at each pair", vector=True),
    ),
    constant="t_c",
    scaled=("f_p", "f_d", "t_c", "table_s", "prefill_s"),
    cannot="how tokens and KV are spread over the requests of a batch",
    fit=_fit,
    check=_check,
)

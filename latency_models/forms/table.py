"""PolyServe's latency table: a batch's time by its tokens and their cached tokens, bilinearly interpolated."""

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.knots import on_plane, place
from servegym.latency_models.least_squares import fit_relative, reached, rising
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

T_C, TOKENS = range(2)

FIT_TOKENS = (1, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
FIT_CACHED = (0, 4096, 16384, 65536, 131072, 262144, 524288)


@kernel
def cell_of(tokens, cached, coefficients, knots):
    """Find (batch tokens, cached tokens) in a table whose two vectors of knots begin at `knots`.

    Returns the cell's first corner, the number of columns, and the shares of the cell (down, right): of the edge before
    the first knots, of the last cell past the last ones.
    """
    rows, first_row = int(coefficients[knots]), knots + 1
    columns, first_column = int(coefficients[first_row + rows]), first_row + rows + 1
    row, down = place(tokens, coefficients, first_row, rows)
    column, right = place(cached, coefficients, first_column, columns)
    return first_column + columns + 1 + row * columns + column, columns, down, right


@kernel
def look_up(tokens, cached, coefficients):
    """Seconds at (batch tokens, cached tokens)."""
    corner, columns, down, right = cell_of(tokens, cached, coefficients, TOKENS)
    return on_plane(coefficients, corner, columns, down, right)


@latency
def batch_s(batch, coefficients):
    tokens = batch.prefill_tokens + batch.decode_requests
    cached = batch.prefill_cached_tokens + batch.decode_cached_tokens
    return coefficients[T_C] + look_up(tokens, cached, coefficients)


@kernel
def core_s(tokens, cached, decoding, coefficients):
    """Seconds that the request adds to an empty batch."""
    return look_up(float(tokens), float(cached), coefficients) - look_up(0.0, 0.0, coefficients)


def _fit(batches: np.ndarray, duration_s: np.ndarray) -> Values:
    """Fit a table that rises in tokens and in cached tokens, with a slope in cached tokens that rises with tokens."""
    computed = batches["prefill_tokens"] + batches["decode_requests"]
    held = batches["prefill_cached_tokens"] + batches["decode_cached_tokens"]
    tokens, cached = reached(computed, FIT_TOKENS), reached(held, FIT_CACHED)
    rows, columns = rising(computed, tokens), rising(held, cached)
    design = (rows[:, :, None] * columns[:, None, :]).reshape(len(batches), -1)
    weights = fit_relative(design, duration_s).reshape(len(tokens), len(cached))
    return {
        "t_c": 0.0,
        "tokens": tokens.tolist(),
        "cached_tokens": cached.tolist(),
        "table_s": weights.cumsum(axis=0).cumsum(axis=1).ravel().tolist(),
    }


def check_table(values: Values, where: str, name: str) -> None:
    """Raise ProfileError unless the table of this name has a number for each pair of knots and falls along no axis."""
    tokens, cached, seconds = (np.asarray(values[vector]) for vector in ("tokens", "cached_tokens", name))
    if min(len(tokens), len(cached)) < 2 or len(seconds) != len(tokens) * len(cached):
        raise ProfileError(
            f"{where}: {len(tokens)} tokens, {len(cached)} cached_tokens and {len(seconds)} {name}; "
            f"there must be 2 or more of the first two and one {name} for each pair of them"
        )
    for axis, knots in (("tokens", tokens), ("cached_tokens", cached)):
        bad = np.flatnonzero(knots[1:] <= knots[:-1])
        if len(bad):
            before, after = knots[bad[0]], knots[bad[0] + 1]
            raise ProfileError(f"{where}: {axis}[{bad[0] + 1}] is {after} after {before}; they must increase")
    grid = seconds.reshape(len(tokens), len(cached))
    if (np.diff(grid, axis=0) < 0).any() or (np.diff(grid, axis=1) < 0).any():
        raise ProfileError(f"{where}: {name} falls along tokens or cached_tokens; more work must not take less time")


def _check(values: Values, where: str) -> None:
    check_table(values, where, "table_s")


FORM = LatencyForm(
    name="table",
    equation="table(prefill tokens + decodes, cached tokens of all requests) + t_c",
    batch_s=batch_s,
    core_s=core_s,
    coefficients=(
        Coefficient("t_c", "s", "constant part of a batch outside the table"),
        Coefficient("tokens", "tokens", "the table's rows: tokens computed in the batch", vector=True),
        Coefficient("cached_tokens", "tokens", "the table's columns: tokens cached for the batch", vector=True),
        Coefficient("table_s", "s", "time at each pair, row after row", vector=True),
    ),
    constant="t_c",
    scaled=("t_c", "table_s"),
    cannot="whether tokens are prefilled or decoded, and a prefill's attention to itself: a chunk of n tokens takes "
    "what n decodes of the same cached tokens take",
    fit=_fit,
    check=_check,
)

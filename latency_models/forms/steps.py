"""`steps`: attention of prefills, attention of decodes, and the rest of a step, each from a table.

The parts are those of aiconfigurator-core's step model, from which the tables are sampled (`step_models`).
"""

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.latency_models.knots import along, on_plane, place
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.signatures import latency

T_C, TOKENS = range(2)


@kernel
def prefill_attention_s(batch, coefficients, prefills, rows, chunks, columns, prefixes, deep):
    """Attention of all prefills, s. prefills, chunks, prefixes: first places of these knots; rows, columns, deep: their
    numbers."""
    chunk = batch.prefill_tokens_squared / batch.prefill_tokens  # token-weighted mean
    row, down = place(batch.prefill_tokens / chunk, coefficients, prefills, rows)
    column, right = place(chunk, coefficients, chunks, columns)
    layer, inward = place(batch.prefill_tokens_cached / batch.prefill_tokens, coefficients, prefixes, deep)
    corner = prefixes + deep + 1 + (row * columns + column) * deep + layer
    above = on_plane(coefficients, corner, deep, right, inward)
    below = on_plane(coefficients, corner + columns * deep, deep, right, inward)
    return batch.prefill_tokens * (above * (1.0 - down) + below * down)


@kernel
def decodes_s(batch, coefficients, decodes):
    """Attention of all decodes in a mixed step, else the whole step, s. decodes: first place of these knots."""
    rows = int(coefficients[decodes - 1])
    contexts = decodes + rows + 1
    columns = int(coefficients[contexts - 1])
    row, down = place(batch.decode_requests, coefficients, decodes, rows)
    column, right = place(batch.decode_cached_tokens / batch.decode_requests, coefficients, contexts, columns)
    table = contexts + columns + 1
    if batch.prefill_tokens == 0.0:
        table += rows * columns + 1
    return on_plane(coefficients, table + row * columns + column, columns, down, right)


@latency
def batch_s(batch, coefficients):
    # Packed vectors, each after its length: tokens, rest_s, prefills, chunks, prefixes, prefill_s, decodes, ...
    tokens, count = TOKENS + 1, int(coefficients[TOKENS])
    prefills = tokens + 2 * count + 2
    rows = int(coefficients[prefills - 1])
    chunks = prefills + rows + 1
    columns = int(coefficients[chunks - 1])
    prefixes = chunks + columns + 1
    deep = int(coefficients[prefixes - 1])
    seconds = coefficients[T_C]
    if batch.decode_requests == 0.0 or batch.prefill_tokens > 0.0:
        at, share = place(batch.prefill_tokens + batch.decode_requests, coefficients, tokens, count)
        seconds += along(coefficients, tokens + count + 1 + at, share)
    if batch.prefill_tokens > 0.0:
        seconds += prefill_attention_s(batch, coefficients, prefills, rows, chunks, columns, prefixes, deep)
    if batch.decode_requests > 0.0:
        seconds += decodes_s(batch, coefficients, prefixes + deep + 2 + rows * columns * deep)
    return seconds


KNOTS = ("tokens", "prefills", "chunks", "prefixes", "decodes", "contexts")
TABLES = {
    "rest_s": ("tokens",),
    "prefill_s": ("prefills", "chunks", "prefixes"),
    "decode_s": ("decodes", "contexts"),
    "alone_s": ("decodes", "contexts"),
}


def _check(values: Values, where: str) -> None:
    for name in KNOTS:
        knots = np.asarray(values[name])
        if len(knots) < 2 or (np.diff(knots) <= 0).any():
            raise ProfileError(f"{where}: {name} has {len(knots)} numbers; it must have 2 or more, each above the last")
    for name, axes in TABLES.items():
        length, wanted = np.size(values[name]), int(np.prod([np.size(values[axis]) for axis in axes]))
        if length != wanted:
            raise ProfileError(
                f"{where}: {name} has {length} numbers; it must have {wanted}, one for each of {' x '.join(axes)}"
            )


FORM = LatencyForm(
    name="steps",
    equation="rest(prefill tokens + decodes) + prefill tokens x prefill(prefills, chunk, prefix) "
    "+ decode(decodes, mean context) + t_c; of decodes alone: alone(decodes, mean context) + t_c",
    batch_s=batch_s,
    coefficients=(
        Coefficient("t_c", "s", "constant part of a step outside the tables"),
        Coefficient("tokens", "tokens", "knots of all but attention: tokens computed", vector=True),
        Coefficient("rest_s", "s", "all but attention, at each of tokens", vector=True),
        Coefficient("prefills", "requests", "knots of prefill attention: prefills in the step", vector=True),
        Coefficient("chunks", "tokens", "and tokens that each computes", vector=True),
        Coefficient("prefixes", "tokens", "and tokens that each has cached", vector=True),
        Coefficient("prefill_s", "s/token", "prefill attention of a token, prefixes fastest, prefills slowest",
                    vector=True),
        Coefficient("decodes", "requests", "knots of decode attention: decodes in the step", vector=True),
        Coefficient("contexts", "tokens", "and tokens that each has cached", vector=True),
        Coefficient("decode_s", "s", "attention of all decodes beside prefills, contexts fastest", vector=True),
        Coefficient("alone_s", "s", "a step of decodes alone, contexts fastest", vector=True),
    ),
    constant="t_c",
    scaled=("t_c", "rest_s", "prefill_s", "decode_s", "alone_s"),
    cannot="the spread of lengths in a step: chunks and prefixes are taken at their means by tokens, contexts at their "
    "mean",
    check=_check,
)  # fmt: skip

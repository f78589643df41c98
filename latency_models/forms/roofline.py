"""A roofline: work and memory traffic divided by the device's specified peaks, times two or three efficiencies."""

from servegym.errors import ProfileError
from servegym.latency_models.form import Coefficient, LatencyForm, Values
from servegym.simulator.records.signatures import latency

(
    TOKEN_FLOP, PAIR_FLOP, WEIGHT_BYTES, CACHE_BYTES, LINK_BYTES, PEAK_FLOP_PER_S, MEMORY_BYTES_PER_S,
    LINK_BYTES_PER_S, COMPUTE_EFFICIENCY, PREFIX_EFFICIENCY, MEMORY_EFFICIENCY, T_C,
) = range(12)  # fmt: skip


@latency
def batch_s(batch, coefficients):
    tokens = batch.prefill_tokens + batch.decode_requests
    flop_per_s = coefficients[PEAK_FLOP_PER_S] * coefficients[COMPUTE_EFFICIENCY]
    bytes_per_s = coefficients[MEMORY_BYTES_PER_S] * coefficients[MEMORY_EFFICIENCY]
    linear_s = max(coefficients[TOKEN_FLOP] * tokens / flop_per_s, coefficients[WEIGHT_BYTES] / bytes_per_s)
    # A token attends to half of its own chunk on average, and to all tokens cached before the chunk.
    own_s = coefficients[PAIR_FLOP] * batch.prefill_tokens_squared / 2.0 / flop_per_s
    prefix_flop_per_s = coefficients[PEAK_FLOP_PER_S] * coefficients[PREFIX_EFFICIENCY]
    prefix_s = coefficients[PAIR_FLOP] * batch.prefill_tokens_cached / prefix_flop_per_s
    decode_s = coefficients[CACHE_BYTES] * batch.decode_cached_tokens / bytes_per_s
    link_s = coefficients[LINK_BYTES] * tokens / coefficients[LINK_BYTES_PER_S]
    return linear_s + own_s + prefix_s + decode_s + link_s + coefficients[T_C]


def _check(values: Values, where: str) -> None:
    for coefficient in FORM.coefficients:
        name, value = coefficient.name, values[coefficient.name]
        if name.endswith(("_per_s", "_efficiency")) and not value:
            raise ProfileError(f"{where}: {name} is {value}; it must be above 0")
        if name.endswith("_efficiency") and value > 1:  # type: ignore[operator]
            raise ProfileError(f"{where}: {name} is {value}; it must be 1 or less")


FORM = LatencyForm(
    name="roofline",
    equation="max(token_flop N / (peak e_c), weight_bytes / (memory e_m)) + pair_flop (sum lq^2 / (2 peak e_c) "
    "+ sum lq lkv / (peak e_p)) + cache_bytes sum over decodes lkv / (memory e_m) + link_bytes N / link + t_c",
    batch_s=batch_s,
    coefficients=(
        Coefficient("token_flop", "FLOP/token", "linear operators of a token on one device"),
        Coefficient("pair_flop", "FLOP/token^2", "attention of a token to another, all layers, on one device"),
        Coefficient("weight_bytes", "bytes", "weights one device reads in every batch"),
        Coefficient("cache_bytes", "bytes/token", "key and value of a cached token on one device"),
        Coefficient("link_bytes", "bytes/token", "traffic of all-reduces per token and device"),
        Coefficient("peak_flop_per_s", "FLOP/s", "the device's peak"),
        Coefficient("memory_bytes_per_s", "bytes/s", "bandwidth of the device's memory"),
        Coefficient("link_bytes_per_s", "bytes/s", "bandwidth between devices"),
        Coefficient("compute_efficiency", "1", "share e_c of the peak that is reached"),
        Coefficient("prefix_efficiency", "1", "share e_p reached in attention of a chunk to tokens cached before it"),
        Coefficient("memory_efficiency", "1", "share e_m of the memory bandwidth that is reached"),
        Coefficient("t_c", "s", "constant part of a batch"),
    ),
    constant="t_c",
    scaled=("token_flop", "pair_flop", "weight_bytes", "cache_bytes", "link_bytes", "t_c"),
    cannot="fitting (its numbers are specifications), a request's share of the weights, steps of matrix products, "
    "latency of all-reduces and launches, and the LM head apart from other layers",
    check=_check,
)

"""An RTX A6000 composed of LLMServingSim's operators."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from experiments.profiles.shapes import LLAMA_3_8B
from servegym.latency_models.building.all_reduce import FILLING_CHUNK_TOKENS
from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.building.tables import Curve, read_table
from servegym.latency_models.least_squares import fit_relative

A6000_LAYERS = "llmservingsim_a6000_llama31_8b_tp1_layers"
A6000_ATTENTION = "llmservingsim_a6000_llama31_8b_tp1_attention"
A6000_OPERATORS = {
    "qkv": ("input_layernorm", "q_proj", "k_proj", "v_proj"),
    "attention": ("rope",),
    "o": ("o_proj",),
    "gate_up": ("post_layernorm", "gate_proj", "up_proj"),
    "down": ("act_fn", "down_proj"),
}
A6000_REQUESTS = (1, 2, 4, 8, 16, 32)


def a6000(shape: ModelShape = LLAMA_3_8B) -> Composition:
    """LLMServingSim's operators, up to 2048 tokens and 65,536 cached tokens.

    Its attention table counts all keys of a call: those of a decode batch together, and a prefill chunk with
    what is cached before it. Prefills of a batch are taken one after the other: only single ones were measured.
    """
    layers = read_table(A6000_LAYERS).pivot_table(index="input", columns="layer_name", values="latency(ns)") * 1e-9
    linear = {name: Curve.of(layers[list(parts)].sum(axis=1)).at for name, parts in A6000_OPERATORS.items()}
    own = Curve.of(layers["attn"])
    table = read_table(A6000_ATTENTION)
    return Composition(
        shape.layers,
        linear,
        Curve.of(layers["lm_head"]).at,
        lambda requests, length: requests * own.at(length),
        _a6000_decode(table[~table["is_prefill"]]),
        _a6000_cached_slope_s(table[table["is_prefill"]]),
    )


def _a6000_decode(table: pd.DataFrame) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Seconds over (requests, cached tokens of each): so much a request, and so much a cached token.

    Both are fitted for each number of requests up to 32, from where they stay: the table has few cached tokens for
    more, and a curve through its steps would not lead beyond them.
    """
    table = table[table["kv_cache_size"] >= table["batch_size"]]  # with fewer, a request has no cached token
    fitted = []
    for requests in A6000_REQUESTS:
        rows = table[table["batch_size"] == requests]
        seconds = rows["time_stats.attn_decode.median"].to_numpy() * 1e-3
        fitted.append(fit_relative(rows[["batch_size", "kv_cache_size"]].to_numpy(dtype=float), seconds))
    a_request_s, a_token_s = np.transpose(fitted)

    def seconds_of(requests: np.ndarray, cached: np.ndarray) -> np.ndarray:
        per_token = np.interp(requests, A6000_REQUESTS, a_token_s) * cached
        return requests * (np.interp(requests, A6000_REQUESTS, a_request_s) + per_token)

    return seconds_of


def _a6000_cached_slope_s(table: pd.DataFrame) -> float:
    """Growth of a chunk's time with chunk x cached tokens, over the longer chunks; least squares through zero."""
    table = table[table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS // 2]
    seconds = table.groupby("prefill_chunk_size")["time_stats.attn_prefill.median"]
    grown = (table["time_stats.attn_prefill.median"] - seconds.transform("min")) * 1e-3
    pairs = table["prefill_chunk_size"] * (table["kv_cache_size"] - table["prefill_chunk_size"])
    return float((pairs * grown).sum() / (pairs**2).sum())

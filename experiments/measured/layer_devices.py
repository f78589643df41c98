"""Devices composed of LLMServingSim's tables of a layer, as its profiler has them inside vLLM 0.19.0 (eager, 16 bits).

Decodes of a batch are taken at their mean cached length, prefills one after the other. A batch of both kinds takes more
attention than the two alone (1.6 to 1.9 times on average), as the tables have it for prefills with nothing cached.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.all_reduce import all_reduce_s, reduced
from servegym.latency_models.building.composition import Composition, Seconds
from servegym.latency_models.building.data_sheet import Attention, added, used_experts
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.tables import Curve, Surface, read_table

OPERATORS = {
    "qkv": ("layernorm", "qkv_proj", "qk_norm"),
    "attention": ("rotary_emb",),
    "o": ("o_proj",),
    "gate_up": ("layernorm", "gate_up_proj"),
    "down": ("act_fn", "down_proj"),
}
HEAD = ("final_layernorm", "lm_head", "sampler")
LONG_CHUNK = 512  # tokens of a chunk that fills the device
RTX_PRO_6000 = "aiconfigurator_rtx_pro_6000_vllm0.19.0"  # its all-reduces


@dataclass(frozen=True)
class MixedComposition(Composition):
    """A composition with what attention takes in a batch of both kinds.

    mixed_attention_s: (prefill tokens, decodes, cached tokens of each) -> s beyond the two alone.
    """

    mixed_attention_s: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = field(kw_only=True)
    form = "piecewise-mixed"

    def attention_s(self, batches: np.ndarray) -> np.ndarray:
        attention = super().attention_s(batches)
        some = (batches["prefill_requests"] > 0) & (batches["decode_requests"] > 0)
        both = batches[some]
        length = both["decode_cached_tokens"] / both["decode_requests"]
        attention[some] += self.mixed_attention_s(both["prefill_tokens"], both["decode_requests"], length)
        return attention


def layers(
    name: str, shape: ModelShape, devices: int = 1, expert_ranks: int = 1, long_by_vllm: bool = False
) -> Composition:
    """A decoder by the tables `llmservingsim_<name>_...` on tensor-parallel devices.

    expert_ranks: data-parallel engines that hold each a share of the experts, and send each other their tokens; taken
    to have equally many tokens. long_by_vllm: all-reduces from 8 MiB by vLLM's table, not NCCL's; the two are a factor
    of two apart, and the machine's links are not known.
    """

    def reduce_s(ranks: int) -> Seconds:
        nccl = None if long_by_vllm else nccl_alone(ranks)
        return all_reduce_s(RTX_PRO_6000, shape, ranks, nccl)

    table = read_table(f"llmservingsim_{name}_layers")
    table = table[table["tp"] == devices]
    curves = {one: Curve.of(rows.set_index("n")["time_us"] * 1e-6).at for one, rows in table.groupby("layer")}
    operators = dict(OPERATORS)
    if isinstance(shape, MixtureShape):
        del operators["gate_up"], operators["down"]
    linear: dict[str, Seconds] = {
        one: added(*(curves[part] for part in parts if part in curves)) for one, parts in operators.items()
    }
    if isinstance(shape, MixtureShape):
        linear["gate"] = curves["layernorm"]  # the gate's product is part of the experts' table
        linear["experts"] = _experts(name, shape, expert_ranks, reduce_s)
    if devices > 1:
        linear = dict(reduced(linear, reduce_s(devices)))
    attention = read_table(f"llmservingsim_{name}_attention")
    attention = attention[attention["tp"] == devices]
    prefill, decode, slope_s = _attention(attention)
    head = added(*(curves[part] for part in HEAD))
    return MixedComposition(
        shape.layers, linear, head, prefill, decode, slope_s, mixed_attention_s=_mixed(attention, prefill, decode)
    )


def nccl_alone(devices: int) -> Curve:
    """NCCL's all-reduce outside vLLM on a server of RTX PRO 6000, s over the bytes of the message."""
    table = read_table("aiconfigurator_nccl_all_reduce")
    table = table[(table["system"] == "rtx_pro_6000_server") & (table["num_gpus"] == devices)]
    return Curve.of(table.set_index(table["message_size"] * aiconfigurator.ALL_REDUCED_BYTES)["latency"] * 1e-3)


def _attention(table: pd.DataFrame) -> tuple[Attention, Attention, float]:
    """Prefill of chunks with nothing cached, decode, and the slope of a chunk's token with one cached before it."""
    alone = table[table["n_decode"] == 0]
    own = Curve.of(alone[alone["kv_prefill"] == 0].set_index("prefill_chunk")["time_us"] * 1e-6)
    steps = table[table["prefill_chunk"] == 0]
    decode = Surface.of(
        {n: Curve.of(rows.set_index("kv_decode")["time_us"] * 1e-6) for n, rows in steps.groupby("n_decode")}
    )
    long = alone[alone["prefill_chunk"] >= LONG_CHUNK]
    pairs = long["prefill_chunk"] * long["kv_prefill"]
    grown = long["time_us"] * 1e-6 - own.at(long["prefill_chunk"].to_numpy(dtype=float))
    slope_s = float((pairs * grown).sum() / (pairs**2).sum())
    return lambda requests, tokens: requests * own.at(tokens), decode.at, slope_s


def _mixed(
    table: pd.DataFrame, prefill: Attention, decode: Attention
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """What a batch of both kinds takes beyond the two alone, over (prefill tokens, decodes, cached tokens of each)."""
    both = table[(table["prefill_chunk"] > 0) & (table["n_decode"] > 0) & (table["kv_prefill"] == 0)]
    columns = ("prefill_chunk", "n_decode", "kv_decode")
    chunk, decodes, cached = (both[name].to_numpy(dtype=float) for name in columns)
    alone_s = prefill(np.ones(len(both)), chunk) + decode(decodes, cached)
    both = both.assign(more_s=(both["time_us"] * 1e-6 - alone_s).clip(lower=0.0))
    whole = both.groupby("prefill_chunk").filter(lambda rows: rows["n_decode"].nunique() > 3)
    surfaces = {
        tokens: Surface.of({n: Curve.of(one.set_index("kv_decode")["more_s"]) for n, one in rows.groupby("n_decode")})
        for tokens, rows in whole.groupby("prefill_chunk")
    }
    chunks = np.array(list(surfaces), dtype=float)

    def seconds(tokens: np.ndarray, requests: np.ndarray, length: np.ndarray) -> np.ndarray:
        values = np.stack([surface.at(requests, length) for surface in surfaces.values()])
        right = np.searchsorted(chunks, tokens).clip(1, len(chunks) - 1)
        share = ((tokens - chunks[right - 1]) / (chunks[right] - chunks[right - 1])).clip(0.0, 1.0)
        each = np.arange(len(tokens))
        return values[right - 1, each] * (1.0 - share) + values[right, each] * share

    return seconds


def _experts(name: str, shape: MixtureShape, ranks: int, reduce_s: Callable[[int], Seconds]) -> Seconds:
    """Fused experts of one of the ranks over its tokens: a rank holds a share of the experts, for the tokens of all."""
    table = read_table(f"llmservingsim_{name}_moe")
    surface = Surface.of(
        {
            used: Curve.of(rows.set_index("tokens")["time_us"] * 1e-6)
            for used, rows in table.groupby("activated_experts")
        }
    )

    def seconds(tokens: np.ndarray) -> np.ndarray:
        return surface.at(used_experts(shape, tokens * ranks) / ranks, tokens)

    if ranks == 1:
        return seconds
    sent_s = reduce_s(ranks)  # all-gather before and reduce-scatter after: its two halves
    return lambda tokens: seconds(tokens) + sent_s(tokens * ranks)

"""A100s composed of Vidur's linear operators and aiconfigurator's attention."""

from collections.abc import Mapping

from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.all_reduce import a100_cached_slope_s, all_reduce_s, reduced
from servegym.latency_models.building.composition import Composition, Seconds
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.building.tables import Curve, read_table

# What a layer's operators are called in the tables, in the order in which they run. A norm belongs to the product after
# it, as does the activation; the residual's addition ends the layer.
VIDUR_OPERATORS = {
    "qkv": ("input_layernorm", "attn_pre_proj"),
    "attention": ("attn_rope",),
    "o": ("attn_post_proj",),
    "gate_up": ("post_attention_layernorm", "mlp_up_proj"),
    "down": ("mlp_act", "mlp_down_proj", "add"),
}


def a100(linear_table: str, shape: ModelShape, devices: int = 1) -> Composition:
    """Vidur's linear operators, all of a layer in the model's own shapes, with aiconfigurator's attention.

    aiconfigurator has matrix products only, at 21 token counts, and not in the widths of these models' MLPs.
    On several devices each layer has two all-reduces; gathering the logits is left out.
    """
    linear = vidur_linear(linear_table, devices)
    head = aiconfigurator.head(aiconfigurator.products(aiconfigurator.A100), shape, devices)
    prefill, decode = aiconfigurator.attention(aiconfigurator.A100, shape, devices)
    slope = a100_cached_slope_s(shape, devices)
    if devices > 1:
        linear = reduced(linear, all_reduce_s(aiconfigurator.A100, shape, devices))
    return Composition(shape.layers, linear, head, prefill.at, decode.at, slope)


def vidur_linear(linear_table: str, devices: int) -> Mapping[str, Seconds]:
    """The operators of a layer on one of the devices, before any all-reduce."""
    table = read_table(linear_table)
    table = table[table["num_tensor_parallel_workers"] == devices].set_index("num_tokens")
    return {
        name: Curve.of(table[[f"time_stats.{part}.median" for part in parts]].sum(axis=1) * 1e-3).at
        for name, parts in VIDUR_OPERATORS.items()
    }

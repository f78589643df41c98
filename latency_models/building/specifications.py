"""Counts the memory of a device that is left for keys, values and states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.building.shapes import DecoderShape, ModelShape, StateShape
from servegym.latency_models.model_configs.kv_groups import BLOCK_TOKENS, Kept, grouped

GIB = 2**30
UTILISATION_PERCENT = 90  # vLLM's default
RESERVE_BYTES = 5 * GIB // 2
REQUEST_TOKENS = 4096  # length of the requests in which tokens are counted, if it matters
STEP_TOKENS = 8192  # vLLM's default for a server on these GPUs (max_num_batched_tokens)


@dataclass(frozen=True)
class Device:
    """Peak of 16-bit dense products, memory and bandwidths. link: to the other devices of its node; 0: not given."""

    peak_flop_per_s: float
    memory_gib: int
    memory_bytes_per_s: float
    link_bytes_per_s: float


def kv_cache(
    shape: DecoderShape, memory_gib: int, devices: int, utilisation_percent: float = UTILISATION_PERCENT,
    request_tokens: int = REQUEST_TOKENS,
) -> dict[str, Any]:  # fmt: skip
    """Count `kv` of a profile: what the devices' memory holds beside the weights.

    request_tokens: length of the requests in which tokens are counted, if some layers do not keep all tokens.
    Raises ProfileError if the weights leave no room.
    """
    share = int(devices * memory_gib * GIB * utilisation_percent // 100)
    reserve = devices * RESERVE_BYTES
    usable = share - shape.weight_bytes - reserve
    layers, counted, of_groups = _kept(shape, devices)
    groups = grouped(layers, max(0, usable))
    blocks = groups.tokens(request_tokens, STEP_TOKENS) // BLOCK_TOKENS
    if blocks < 1:
        raise ProfileError(
            f"{devices} x {memory_gib} GiB at {utilisation_percent / 100:g} hold {share / 1e9:.1f} GB; the weights "
            f"take {shape.weight_bytes / 1e9:.1f} GB of it and {reserve / 1e9:.1f} GB are reserved: nothing is left "
            f"for {'states' if isinstance(shape, StateShape) else 'keys and values'}"
        )
    times = f"{devices} x " if devices > 1 else ""
    memory = {"block_tokens": BLOCK_TOKENS, "total_blocks": blocks}
    if of_groups:
        memory = groups.in_profile(request_tokens, STEP_TOKENS)
        of_groups += (
            ": blocks and groups of layers as vLLM has them; block_tokens are for requests of "
            f"{request_tokens} tokens, of which one computes {STEP_TOKENS} at once."
        )
    return {
        # If no layer keeps all tokens, it is the mean of such requests.
        "bytes_per_token": shape.kv_bytes_per_token or usable // (blocks * BLOCK_TOKENS),
        "block_tokens": memory["block_tokens"],
        "usable_bytes": usable,
        **memory,
        "arithmetic": f"{times}{memory_gib} GiB x {utilisation_percent / 100} = {share} bytes "
        f"- weights {shape.weight_bytes} - {reserve} ({times}2.5 GiB, assumed, for activations, graphs and the "
        f"driver) = {usable}; / {counted}{of_groups}",
    }


def _kept(shape: DecoderShape, devices: int) -> tuple[list[Kept], str, str]:
    """The memory of each layer on all devices, its bytes in words, and what some layers keep instead of all tokens."""
    if isinstance(shape, StateShape):
        state_bytes = devices * shape.state.bytes(devices)
        kept = Kept(state_bytes=state_bytes, checkpoints=shape.state.kind == "Mamba-2")
        counted = f"({shape.layers} layers x {state_bytes} bytes), less one block, which vLLM leaves empty."
        return [kept] * shape.layers, counted, " A request has a state in each layer"
    assert isinstance(shape, ModelShape)
    heads = devices * max(1, shape.kv_heads // devices)  # each device has one at least
    layer_bytes = 2 * heads * shape.head_dim * shape.kv_number_bytes
    counted = (
        f"({BLOCK_TOKENS} tokens x {shape.layers * layer_bytes} bytes). A token: 2 (K, V) x {shape.layers} layers x "
        f"{heads} heads x {shape.head_dim} x {shape.kv_number_bytes} bytes."
    )
    layers = [Kept(layer_bytes)] * (shape.layers - shape.windowed)
    layers += [Kept(layer_bytes, shape.window)] * shape.windowed
    keep = f" {shape.windowed} of the layers keep a window of {shape.window} tokens" if shape.windowed else ""
    return layers, counted, keep

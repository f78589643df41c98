"""Operators by a GPU's data sheet: FLOP and bytes at a share of the peaks.

The shares are medians over A100, H100, H200 and L40S in aiconfigurator's tables, so of single kernels on an idle GPU
(tests/latency_models/test_gpu_kernels.py measures them again).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from servegym.latency_models.building.composition import Seconds
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape, StateShape
from servegym.latency_models.building.specifications import Device

LAUNCH_S = 2e-6
TRAFFIC_EFFICIENCY = 0.8  # of memory bandwidth in norms and activations, assumed
NUMBER_BYTES = 2  # of an activation
PRODUCT_EFFICIENCY = 0.78  # products of 4096 rows, columns and depth or more
FP8_EFFICIENCY = 0.53
READ_EFFICIENCY = 0.83  # products of one row
PREFILL_EFFICIENCY = 0.54  # attention of 2048 tokens or more to themselves
CACHE_EFFICIENCY = 0.76  # decodes that read more than 256 MB of keys and values
ATTENTION_S = 1e-5  # of one token to itself
LINK_EFFICIENCY = 0.66  # all-reduces of 64 MiB
ALL_REDUCE_S = 4.6e-6  # of the shortest message
REDUCED_BYTES = 2  # of an activation that is all-reduced
CONVOLUTION_EFFICIENCY = 0.69  # convolutions of 4096 tokens or more, on H100, H200 and L40S
PREFILL_KERNELS, DECODE_KERNELS = 6, 2  # of a Mamba-2 layer's convolution and scan; Mamba needs 2 for either
Attention = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (requests, tokens of each) -> s


def elementwise(chip: Device, numbers: float) -> Seconds:
    """Time a kernel that reads or writes `numbers` numbers for each token."""
    token_s = NUMBER_BYTES * numbers / (chip.memory_bytes_per_s * TRAFFIC_EFFICIENCY)
    return lambda tokens: LAUNCH_S + tokens * token_s


def added(*parts: Seconds) -> Seconds:
    return lambda tokens: sum((part(tokens) for part in parts), np.zeros(len(tokens)))


def scaled(factor: float, *parts: Seconds) -> Seconds:
    return lambda tokens: factor * added(*parts)(tokens)


def used_experts(shape: MixtureShape, tokens: np.ndarray) -> np.ndarray:
    """Return the expected number of experts that some token goes to, if each token chooses uniformly."""
    return shape.experts * (1.0 - (1.0 - shape.chosen / shape.experts) ** tokens)


class DataSheet:
    """The operators of a layer, s on each of the devices. number_bytes: of a weight; flop_per_s: its products' peak."""

    def __init__(self, chip: Device, flop_per_s: float, number_bytes: float = 2):
        self.chip = chip
        self.number_bytes = number_bytes
        efficiency = FP8_EFFICIENCY if number_bytes == 1 and flop_per_s > chip.peak_flop_per_s else PRODUCT_EFFICIENCY
        self.flop_per_s = flop_per_s * efficiency
        self.read_bytes_per_s = chip.memory_bytes_per_s * READ_EFFICIENCY

    def product(self, n: int, k: int, number_bytes: float | None = None) -> Seconds:
        """Time a product [m, k] x [k, n] over m: the longer of its FLOP and of reading and writing."""
        weight_bytes = n * k * (self.number_bytes if number_bytes is None else number_bytes)
        row_s = NUMBER_BYTES * (n + k) / self.read_bytes_per_s
        flop_s = 2.0 * n * k / self.flop_per_s
        return lambda m: LAUNCH_S + np.maximum(m * flop_s, weight_bytes / self.read_bytes_per_s + m * row_s)

    def head(self, shape: DecoderShape, devices: int) -> Seconds:
        """Time the LM head over its rows, in 16 bits."""
        return DataSheet(self.chip, self.chip.peak_flop_per_s).product(shape.vocabulary // devices, shape.hidden)

    def attention(self, shape: ModelShape, devices: int) -> tuple[Attention, Attention, float]:
        """Time prefill and decode of a layer, and the slope of a chunk's token with one cached before it."""
        pair_s = 4.0 * shape.heads / devices * shape.head_dim / (self.chip.peak_flop_per_s * PREFILL_EFFICIENCY)
        kv_heads = max(1, shape.kv_heads // devices)
        token_bytes = 2 * kv_heads * shape.head_dim * shape.kv_number_bytes
        token_s = token_bytes / (self.chip.memory_bytes_per_s * CACHE_EFFICIENCY)

        def prefill(requests: np.ndarray, tokens: np.ndarray) -> np.ndarray:
            return ATTENTION_S + requests * tokens**2 / 2 * pair_s

        def decode(requests: np.ndarray, cached: np.ndarray) -> np.ndarray:
            return ATTENTION_S + requests * cached * token_s

        return prefill, decode, pair_s

    def experts(self, shape: MixtureShape, tensor_parallel: int, expert_parallel: int) -> Seconds:
        """Time experts: the longer of products and of reading the experts that some token goes to, then the kernels
        around them."""
        numbers = 3 * shape.hidden * shape.intermediate / (tensor_parallel * expert_parallel)
        read_s = numbers * shape.bytes_of_expert_weights / self.read_bytes_per_s
        token_s = 2.0 * shape.chosen * numbers / self.flop_per_s

        def products(tokens: np.ndarray) -> np.ndarray:
            return 2 * LAUNCH_S + np.maximum(tokens * token_s, used_experts(shape, tokens) * read_s)

        return added(products, *around_experts(self.chip, shape, tensor_parallel * expert_parallel))

    def scan(self, shape: StateShape, devices: int) -> tuple[Attention, Attention, float]:
        """Time prefill and decode of a layer's convolution and scan, and reading and writing a request's state.

        Mamba-2's chunks of Q tokens are matrix products: Q (2 G N + D) + 4 N D FLOP a token, for D channels with states
        of N numbers, in G groups (arXiv:2405.21060, section 6). A token's inputs are read twice, and a chunk's state in
        32 bits is moved four times. Mamba's scan is bound by memory: its 9 N D FLOP (arXiv:2312.00752, its benchmarks)
        take less time at the FP32 peak of all these GPUs but the A100.
        """
        scan = shape.scan
        inner, convolved = scan.inner / devices, float(scan.convolved_on(devices))
        flop, numbers, kernels = 0.0, 4.0 * inner + 2 * scan.state, DECODE_KERNELS
        if scan.chunk:
            of_groups = convolved - inner  # 2 G N
            flop = scan.chunk * (of_groups + inner) + 4.0 * scan.state * inner
            numbers = 2.0 * convolved + inner + 4 * 2 * scan.state * inner / scan.chunk
            kernels = PREFILL_KERNELS
        moved_s = NUMBER_BYTES * numbers / (self.chip.memory_bytes_per_s * TRAFFIC_EFFICIENCY)
        convolution_s = NUMBER_BYTES * 2 * convolved / (self.chip.memory_bytes_per_s * CONVOLUTION_EFFICIENCY)
        token_s = convolution_s + max(flop / (self.chip.peak_flop_per_s * PREFILL_EFFICIENCY), moved_s)
        state_s = 2 * shape.state.bytes(devices) / (self.chip.memory_bytes_per_s * CACHE_EFFICIENCY)

        def prefill(requests: np.ndarray, tokens: np.ndarray) -> np.ndarray:
            return kernels * LAUNCH_S + requests * tokens * token_s

        def decode(requests: np.ndarray, cached: np.ndarray) -> np.ndarray:
            return np.full(len(requests), DECODE_KERNELS * LAUNCH_S)

        return prefill, decode, state_s

    def all_reduce(self, shape: DecoderShape, devices: int) -> Seconds:
        """Time an all-reduce of the hidden states over tokens: each device sends 2 (n - 1) / n of the message."""
        sent = 2 * (devices - 1) / devices * shape.hidden * REDUCED_BYTES
        token_s = sent / (self.chip.link_bytes_per_s * LINK_EFFICIENCY) if devices > 1 else 0.0
        return lambda tokens: ALL_REDUCE_S + tokens * token_s


def around_experts(chip: Device, shape: MixtureShape, devices: int) -> tuple[Seconds, Seconds]:
    """Time the activation and the weighted sum of experts."""
    return (
        elementwise(chip, 3 * shape.intermediate * shape.chosen / devices),
        elementwise(chip, (shape.chosen + 1) * shape.hidden),
    )

"""Measures a model's operators with torch, on any of its devices, from the model's shape alone.

A layer is norm, qkv, attention, o, norm, gate_up, activation, down; after the layers come the norm and the product with
the vocabulary, for one token a request. Weights are random, and layers use in turn as many sets of them as exceed the
caches. Attention is torch's scaled_dot_product_attention: a call for each prefill, and one for all decodes, at their
mean context. The rotary embedding, the sampler and the engine's own work are not measured, so a device model fitted to
these times needs an engine's CPU time added.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.adapters.profiling.design import Batch, Prefill, Space
from servegym.adapters.profiling.measuring import Measurement
from servegym.errors import ProfileError, ProfilingError
from servegym.latency_models.building.huggingface import read_config, shape_of
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.model_configs.reading import read

if TYPE_CHECKING:
    import torch

OPERATORS = ("norm", "qkv", "attention", "o", "gate_up", "activation", "down", "head")
TURNS_BYTES = 2**29  # bytes of weights, and of keys and values, that are used in turn; more than caches hold
WARM_UP_S = 0.2
EPSILON = 1e-5


def read_shape(path: Path) -> ModelShape:
    """Read the shape of a dense model from a config.json, as on Hugging Face.

    Raises ProfilingError for files that `model_configs.reading.read` refuses, and for a model with other layers.
    """
    try:
        shape = shape_of(read(read_config(path, ProfilingError), str(path)), str(path))
    except ProfileError as error:
        raise ProfilingError(str(error)) from None
    if isinstance(shape, MixtureShape) or shape.windowed:
        raise ProfilingError(f"{path}: has experts or sliding windows; only operators of dense models can be measured")
    return shape


class TorchMeter:
    """Measures batches as operators of a model shape.

    dtype: name of a torch dtype. Raises ProfilingError for a device or dtype that torch does not have here.
    """

    def __init__(self, shape: ModelShape, space: Space, device: str = "cpu", dtype: str = "bfloat16", seed: int = 0):
        try:
            import torch
        except ImportError as error:
            raise ProfilingError(f"--operators needs torch ({error}): pip install 'servegym[train]'") from None
        self.torch, self.shape, self.space = torch, shape, space
        self.dtype: Any = getattr(torch, dtype, None)
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise ProfilingError(f"dtype is {dtype!r}; it should be one of torch, such as bfloat16 or float32")
        try:
            self.device = torch.device(device)
            self.random = torch.Generator(self.device).manual_seed(seed)
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__
            raise ProfilingError(f"torch has no device {device!r} here: {reason}") from None
        bytes_a_layer = shape.used_weights // shape.layers * self.dtype.itemsize
        self.turns = max(1, min(shape.layers, -(-TURNS_BYTES // bytes_a_layer)))
        self.layers = [self._weights() for _ in range(self.turns)]
        self.head = self._draw(shape.hidden, shape.vocabulary)
        self.norm_weight = self._draw(shape.hidden)

    def _draw(self, *size: int) -> torch.Tensor:
        drawn = self.torch.randn(*size, generator=self.random, device=self.device, dtype=self.dtype)
        return drawn / size[0] ** 0.5

    def _weights(self) -> dict[str, torch.Tensor]:
        shape = self.shape
        return {
            "qkv": self._draw(shape.hidden, shape.qkv_width),
            "o": self._draw(shape.heads * shape.head_dim, shape.hidden),
            "gate_up": self._draw(shape.hidden, 2 * shape.intermediate),
            "down": self._draw(shape.intermediate, shape.hidden),
        }

    def facts(self) -> dict[str, Any]:
        torch = self.torch
        on_gpu = self.device.type == "cuda"
        return {
            "engine": "torch operators",
            "shape": dataclasses.asdict(self.shape),
            "dtype": str(self.dtype),
            "device": torch.cuda.get_device_name(self.device) if on_gpu else platform.processor() or self.device.type,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "layers_measured": self.turns,
            "clock": "torch.cuda.Event" if on_gpu else "time.perf_counter",
        }

    def warm_up(self) -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_UP_S:
            self.measure(Batch((Prefill(min(64, self.space.batch_tokens)),), (16,)), 1)

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        run = _Run(self, batch)
        run.layers()
        run.head()  # an unmeasured pass, in which memory is allocated and kernels are chosen
        passes = [run.timed() for _ in range(repeats)]
        seconds = np.array([sum(parts.values()) for parts in passes])
        parts = {f"{name}_s": float(np.median([each[name] for each in passes])) for name in OPERATORS}
        return Measurement(batch.sums(), seconds, parts)

    def close(self) -> None:
        self.layers.clear()


class _Run:
    """Holds the tensors of a batch, and runs the operators of a pass over it."""

    def __init__(self, meter: TorchMeter, batch: Batch):
        self.meter, self.batch, shape = meter, batch, meter.shape
        self.tokens = sum(each.tokens for each in batch.prefills) + len(batch.decodes)
        self.hidden = meter._draw(self.tokens, shape.hidden)
        self.context = max(1, round(sum(batch.decodes) / max(1, len(batch.decodes))) + 1)
        cached = sum(each.tokens + each.cached for each in batch.prefills) + len(batch.decodes) * self.context
        held = 2 * cached * shape.kv_heads * shape.head_dim * meter.dtype.itemsize
        self.kept = [self._keys_and_values() for _ in range(max(1, min(meter.turns, TURNS_BYTES // held)))]
        self.marks: list[tuple[str, Any]] | None = None

    def _keys_and_values(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw keys and values of each prefill, and of all decodes together."""
        shape, draw = self.meter.shape, self.meter._draw
        sizes = [(1, shape.kv_heads, each.tokens + each.cached, shape.head_dim) for each in self.batch.prefills]
        if self.batch.decodes:
            sizes.append((len(self.batch.decodes), shape.kv_heads, self.context, shape.head_dim))
        return [(draw(*size), draw(*size)) for size in sizes]

    def timed(self) -> dict[str, float]:
        """Run a pass. Returns seconds of each operator, summed over all layers of the model."""
        share = self.meter.shape.layers / self.meter.turns
        layers = self._clocked(self.layers)
        head = self._clocked(self.head)
        return {name: share * layers.get(name, 0.0) + head.get(name, 0.0) for name in OPERATORS}

    def _clocked(self, work: Callable[[], None]) -> dict[str, float]:
        on_gpu = self.meter.device.type == "cuda"
        if on_gpu:
            self.meter.torch.cuda.synchronize(self.meter.device)
        self.marks = []
        self._mark("")
        work()
        if on_gpu:
            self.meter.torch.cuda.synchronize(self.meter.device)
        seconds: dict[str, float] = {}
        for (_, before), (name, after) in zip(self.marks, self.marks[1:], strict=False):
            took_s = before.elapsed_time(after) / 1e3 if on_gpu else after - before
            seconds[name] = seconds.get(name, 0.0) + took_s
        self.marks = None
        return seconds

    def _mark(self, name: str) -> None:
        """Mark the end of an operator on the device's timeline."""
        if self.marks is None:
            return
        if self.meter.device.type == "cuda":
            event = self.meter.torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((name, event))
        else:
            self.marks.append((name, time.perf_counter()))

    def layers(self) -> None:
        with self.meter.torch.inference_mode():
            for place, weights in enumerate(self.meter.layers):
                self._layer(weights, self.kept[place % len(self.kept)])

    def _norm(self, hidden: torch.Tensor) -> torch.Tensor:
        weight = self.meter.norm_weight
        return self.meter.torch.nn.functional.rms_norm(hidden, weight.shape, weight, EPSILON)

    def _layer(self, weights: dict[str, torch.Tensor], kept: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        functional, shape = self.meter.torch.nn.functional, self.meter.shape
        normed = self._norm(self.hidden)
        self._mark("norm")
        queries = (normed @ weights["qkv"])[:, : shape.heads * shape.head_dim]
        self._mark("qkv")
        attended = self._attention(queries, kept)
        self._mark("attention")
        hidden = attended @ weights["o"]
        self._mark("o")
        normed = self._norm(hidden)
        self._mark("norm")
        both = normed @ weights["gate_up"]
        self._mark("gate_up")
        gated = functional.silu(both[:, : shape.intermediate]) * both[:, shape.intermediate :]
        self._mark("activation")
        gated @ weights["down"]
        self._mark("down")

    def _attention(self, queries: torch.Tensor, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        torch, shape = self.meter.torch, self.meter.shape
        from torch.nn.attention.bias import causal_lower_right

        attend, out, at = torch.nn.functional.scaled_dot_product_attention, [], 0
        grouped = shape.kv_heads != shape.heads
        for prefill, (keys, values) in zip(self.batch.prefills, kept, strict=False):
            mine = self._heads(queries[at : at + prefill.tokens], 1, prefill.tokens)
            # Lower-right aligned, so that the last query sees all keys; without cached tokens that is the plain causal
            # mask, which is faster.
            mask = causal_lower_right(prefill.tokens, prefill.tokens + prefill.cached) if prefill.cached else None
            found = attend(mine, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
            out.append(found.transpose(1, 2).reshape(prefill.tokens, -1))
            at += prefill.tokens
        if self.batch.decodes:
            mine = self._heads(queries[at:], len(self.batch.decodes), 1)
            found = attend(mine, *kept[-1], enable_gqa=grouped)
            out.append(found.reshape(len(self.batch.decodes), -1))
        return torch.cat(out) if len(out) > 1 else out[0]

    def _heads(self, queries: torch.Tensor, requests: int, tokens: int) -> torch.Tensor:
        """Reshape to [requests, heads, tokens, head size]."""
        shape = self.meter.shape
        return queries.reshape(requests, tokens, shape.heads, shape.head_dim).transpose(1, 2)

    def head(self) -> None:
        """Run the norm and the product with the vocabulary for the last token of each request."""
        with self.meter.torch.inference_mode():
            last = self.hidden[: len(self.batch.prefills) + len(self.batch.decodes)]
            normed = self._norm(last)
            self._mark("norm")
            normed @ self.meter.head
            self._mark("head")

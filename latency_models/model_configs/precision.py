"""Reads precisions of weights, activations, experts and cached keys and values from a `quantization_config`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from servegym.errors import ProfileError, unknown_name
from servegym.latency_models.model_configs.keys import Fields

# Bytes of a weight, with the scales of its block: of 8 bits for 32 (mxfp4) or 16 (nvfp4), of 16 bits for 128 (int4).
WEIGHTS = {
    "bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int8": 1.0, "int4": (4 + 16 / 128) / 8, "mxfp4": (4 + 8 / 32) / 8,
    "nvfp4": (4 + 8 / 16) / 8,
}  # fmt: skip
KV = {"bf16": 2, "fp8": 1}  # bytes of a cached key or value
ATTENTION, MLP, EXPERTS = PARTS = ("attention", "mlp", "experts")
# Words in names of modules, by part; an expert layer's mlp is its shared MLP.
WORDS = (
    (EXPERTS, re.compile(r"(?<!shared_)experts\b")),
    (MLP, re.compile(r"shared_expert|mlp|feed_forward|ffn")),
    (ATTENTION, re.compile(r"attn|attention|mixer")),
)
LAYER = re.compile(r"\blayers\.(\d+)\.")
LAST_PRODUCTS = {"o_proj", "down_proj", "out_proj", "w2"}
PRODUCT = re.compile(r"\b(\w+_proj|w[123])$")
NO_PRODUCT = re.compile(  # no product of a layer, or a small one
    r".*(lm_head|\bhead|embed|norm|router|gate$|gate\.|visi|visual|mtp|conv|bias|indexer|A_log|dt_|audio|projector).*"
)
HINT = "give --precision"


@dataclass(frozen=True)
class Precision:
    """Precisions of weights by part, keys of WEIGHTS; of activations; and of the KV cache, a key of KV."""

    attention: str = "bf16"
    mlp: str = "bf16"
    experts: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"

    @classmethod
    def of_all(cls, weights: str, activations: str, kv: str) -> Precision:
        return cls(weights, weights, weights, activations, kv)

    def __str__(self) -> str:
        """Write it shortly: `int4`, or `bf16, experts mxfp4`."""
        parts = {self.attention, self.mlp}
        dense = self.attention if len(parts) == 1 else f"attention {self.attention}, MLP {self.mlp}"
        return dense if self.experts in parts and len(parts) == 1 else f"{dense}, experts {self.experts}"


def named(weights: str, kv: str) -> Precision:
    """Make the precision of a name in WEIGHTS: of all products, or with mxfp4 of experts only. Raises ProfileError for
    unknown names."""
    if weights not in WEIGHTS:
        raise ProfileError(f"precision '{weights}' is not known; there is {', '.join(WEIGHTS)}")
    if weights == "mxfp4":
        return Precision(experts="mxfp4", kv=kv)
    return Precision.of_all(weights, ACTIVATIONS.get(weights, "bf16"), kv)


ACTIVATIONS = {"fp8": "fp8", "fp8-block": "fp8", "int8": "int8", "nvfp4": "nvfp4"}  # with other weights: 16 bits


def precision_of(quantisation: Any, where: str, layers: Mapping[str, set[int]]) -> Precision:
    """Read the precision. Raises ProfileError for an unknown method, scheme or excluded module."""
    if not quantisation:
        return Precision()
    fields = Fields(quantisation.get("quantization", quantisation), f"{where}: quantization_config")
    method = str(fields.take("quant_method", otherwise="modelopt"))
    fields.take("producer", "fmt", "scale_fmt", "activation_scheme", "version", "format", "quantization_status")
    fields.take(
        "global_compression_ratio",
        "zero_point",
        "desc_act",
        "sym",
        "lm_head",
        "group_size",
        "backend",
        "checkpoint_format",
    )
    kv = _kv(fields.take("kv_cache_quant_algo", "kv_cache_scheme"), fields.where)
    weights, activations = _scheme(fields, method)
    excluded = fields.take("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", otherwise=())
    fields.check_all_taken()
    kept = kept_parts(excluded, layers, fields.where)
    if weights == "mxfp4":  # vLLM supports it for experts only
        kept |= {ATTENTION, MLP}
    parts = {part: "bf16" if part in kept else weights for part in PARTS}
    return Precision(**parts, activations=activations, kv=kv)


def _scheme(fields: Fields, method: str) -> tuple[str, str]:
    """Read the precisions (weights, activations) of quantised modules."""
    if method in ("fp8", "fbgemm_fp8"):
        block = fields.take("weight_block_size")
        return ("fp8-block" if block else "fp8"), "fp8"
    if method == "mxfp4":
        return "mxfp4", "bf16"
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round"):
        bits = fields.number("bits", "w_bit")
        if bits in (4, 8):
            return f"int{bits}", "bf16"
        raise ProfileError(f"{fields.where}: {method} of {bits} bits is not known; {HINT}")
    algorithm = fields.take("quant_algo")
    groups = fields.take("config_groups", otherwise={})
    if method == "modelopt" and algorithm in ("FP8", "NVFP4"):
        return algorithm.lower(), algorithm.lower()
    if method in ("modelopt", "compressed-tensors") and groups and algorithm in (None, "FP8", "NVFP4"):
        schemes = {_group(group, fields.where) for group in groups.values()}
        if len(schemes) == 1:
            return schemes.pop()
        raise ProfileError(f"{fields.where}: config_groups of {len(schemes)} precisions are not known; {HINT}")
    scheme = f"{method} {algorithm}" if algorithm else method
    raise ProfileError(f"{fields.where}: {scheme} is not known; {HINT}")


def _group(group: Mapping[str, Any], where: str) -> tuple[str, str]:
    weights, inputs = (_number(group.get(key), where) for key in ("weights", "input_activations"))
    if weights == "fp4":
        size = group["weights"].get("group_size")
        weights = {16: "nvfp4", 32: "mxfp4"}.get(size, "")
    if weights == "fp8" and group["weights"].get("strategy") == "block":
        weights = "fp8-block"
    if weights not in WEIGHTS or weights == "bf16":
        raise ProfileError(f"{where}: weights of {group.get('weights')} are not known; {HINT}")
    return weights, "nvfp4" if inputs == "fp4" else inputs


def _number(scheme: Any, where: str) -> str:
    if not scheme:
        return "bf16"
    return f"{'fp' if scheme.get('type') == 'float' else 'int'}{scheme.get('num_bits')}"


def kv_of(document: Mapping[str, Any], where: str) -> str:
    """Read the precision of cached keys and values alone, a key of KV."""
    quantisation = document.get("quantization_config") or {}
    quantisation = quantisation.get("quantization", quantisation)
    return _kv(quantisation.get("kv_cache_quant_algo") or quantisation.get("kv_cache_scheme"), where)


def _kv(scheme: Any, where: str) -> str:
    word = _number(scheme, where) if isinstance(scheme, Mapping) else str(scheme or "bf16").lower()
    if word not in KV:
        raise ProfileError(f"{where}: " + unknown_name("KV precision", word, KV))
    return word


def kept_parts(excluded: Iterable[str], layers: Mapping[str, set[int]], where: str) -> set[str]:
    """Return the PARTS that excluded modules leave in 16 bits. layers: the layers that have each part.

    Raises ProfileError if they exclude only some layers or some products of a part, or have unknown names.
    """
    found: dict[str, tuple[set[int], set[str]]] = {}  # part -> excluded layers and products
    for name in excluded:
        if NO_PRODUCT.fullmatch(name):
            continue
        part = next((part for part, words in WORDS if words.search(name)), None)
        number, product = LAYER.search(name), PRODUCT.search(name)
        if part is None or ("layers." in name and number is None and "layers.*." not in name):
            raise ProfileError(f"{where}: leaves {name!r} in 16 bits, which is not known; {HINT}")
        numbers, products = found.setdefault(part, (set(), set()))
        numbers.update({int(number[1])} if number else layers[part])
        products.add(product[1] if product else "all")
    for part, (numbers, products) in found.items():
        if not numbers >= layers[part] or not products & (LAST_PRODUCTS | {"all"}):
            raise ProfileError(f"{where}: leaves a part of the {part} products in 16 bits, which is not known; {HINT}")
    return set(found)

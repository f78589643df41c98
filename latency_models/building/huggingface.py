"""The shape and the precision of a model, as its config.json on Hugging Face says them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servegym.errors import ProfileError, ServegymError
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.parsing import parse_json

# Bytes of a weight of the layers; of mxfp4, of all but the experts.
PRECISIONS = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "int4": 0.5, "mxfp4": 2.0}
MXFP4_BYTES = (4 + 8 / 32) / 8  # 4 bits a number, and 8 bits for the scale of each 32
KV_PRECISIONS = {"bf16": 2, "fp8": 1}  # bytes of a cached key or value
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
UNKNOWN_KINDS = {
    "kv_lora_rank": "latent attention (MLA)",
    "mamba_d_state": "state-space layers",
    "linear_num_key_heads": "linear attention",
}


@dataclass(frozen=True)
class Model:
    """name: of the model or its file. precision: a key of PRECISIONS. left_out: what a profile of it does not know."""

    name: str
    shape: ModelShape
    precision: str
    left_out: tuple[str, ...] = ()


def read_model(path: Path, precision: str | None = None, kv_precision: str = "bf16") -> Model:
    """The model in a config.json; precision: instead of the file's own. kv_precision: of cached keys and values.

    Raises ProfileError for a file that is none, a field that is missing or out of range, and a model of another kind.
    """
    document = read_config(path, ProfileError)
    name = str(document.get("_name_or_path") or (path.parent.name if path.name == "config.json" else path.stem))
    return model_of(document, name, precision, str(path), kv_precision)


def read_config(path: Path, error_type: type[ServegymError]) -> dict[str, Any]:
    """The JSON object in a model's config.json. Raises error_type for a file that is none."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise error_type(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise error_type(f"{path} is no JSON object; it should be a model's config.json")
    return document


def model_of(
    document: Mapping[str, Any], name: str, precision: str | None = None, where: str = "config",
    kv_precision: str = "bf16",
) -> Model:  # fmt: skip
    """The model that a config describes. Raises as `read_model`."""
    quantisation = document.get("quantization_config")
    if isinstance(document.get("text_config"), dict):  # a model of several modalities
        document = document["text_config"]
        quantisation = quantisation or document.get("quantization_config")
    for field, kind in UNKNOWN_KINDS.items():
        if document.get(field):
            raise ProfileError(f"{where}: {field} says {kind}; profiles are of attention with keys and values by head")
    precision = precision or precision_of(quantisation, where)
    if precision not in PRECISIONS:
        raise ProfileError(f"precision '{precision}' is not known; there is {', '.join(PRECISIONS)}")
    if kv_precision not in KV_PRECISIONS:
        raise ProfileError(f"KV precision '{kv_precision}' is not known; there is {', '.join(KV_PRECISIONS)}")
    heads, hidden = (_number(document, field, where) for field in ("num_attention_heads", "hidden_size"))
    numbers: dict[str, Any] = {
        "layers": _number(document, "num_hidden_layers", where),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _number(document, "num_key_value_heads", where, heads),
        "head_dim": _number(document, "head_dim", where, hidden // heads),
        "vocabulary": _number(document, "vocab_size", where),
        "number_bytes": PRECISIONS[precision],
        "kv_number_bytes": KV_PRECISIONS[kv_precision],
        "tied": bool(document.get("tie_word_embeddings", False)),
    }
    layers = document.get("layer_types") or []
    if document.get("sliding_window") and "sliding_attention" in layers:
        numbers |= {"windowed": layers.count("sliding_attention"), "window": int(document["sliding_window"])}
    if heads % numbers["kv_heads"]:
        raise ProfileError(f"{where}: {heads} attention heads do not share {numbers['kv_heads']} key heads evenly")
    shape = _with_mlp(document, numbers, where)
    if precision == "mxfp4":
        if not isinstance(shape, MixtureShape):
            raise ProfileError(f"{where}: precision mxfp4 is one of experts, and the model has none")
        shape = dataclasses.replace(shape, expert_number_bytes=MXFP4_BYTES)
    return Model(name, shape, precision, _left_out(document))


def _with_mlp(document: Mapping[str, Any], numbers: Mapping[str, Any], where: str) -> ModelShape:
    experts = next((document[field] for field in EXPERTS if document.get(field)), 0)
    if not experts or experts == 1:
        return ModelShape(**numbers, intermediate=_number(document, "intermediate_size", where))
    one = _number(document, "moe_intermediate_size", where, document.get("intermediate_size"))
    shared = document.get("shared_expert_intermediate_size") or one * int(document.get("n_shared_experts") or 0)
    if document.get("model_type") == "llama4_text":
        shared = one  # each layer has one shared expert, which its config does not name
    chosen = _number(document, "num_experts_per_tok", where)
    return MixtureShape(**numbers, intermediate=one, experts=int(experts), chosen=chosen, shared=int(shared))


def _left_out(document: Mapping[str, Any]) -> tuple[str, ...]:
    left_out = []
    window = document.get("sliding_window") and document.get("use_sliding_window", True)
    if window and not document.get("layer_types"):
        left_out.append("the sliding window: all layers attend to all tokens, and cache them")
    if document.get("first_k_dense_replace") or document.get("mlp_only_layers"):
        left_out.append("layers without experts: all are taken to have them")
    return tuple(left_out)


def precision_of(quantisation: Any, where: str) -> str:
    """A key of PRECISIONS, of a `quantization_config`; none: bf16. Raises ProfileError for one that is not known."""
    if not quantisation:
        return "bf16"
    text = json.dumps(quantisation).lower()
    method = str(quantisation.get("quant_method", ""))
    if method == "fp8" and quantisation.get("weight_block_size"):
        return "fp8-block"
    if method == "mxfp4":
        return "mxfp4"
    if "fp8" in method or ('"num_bits": 8' in text and '"type": "float"' in text):
        return "fp8"
    if quantisation.get("bits") == 4 or '"num_bits": 4' in text or method == "awq":
        return "int4"
    raise ProfileError(f"{where}: quantization_config {method or 'without a method'} is not known; give --precision")


def _number(document: Mapping[str, Any], field: str, where: str, otherwise: int | None = None) -> int:
    value = document.get(field)
    value = otherwise if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ProfileError(f"{where}: {field} is {value!r}; it should be a whole number of 1 or more")
    return value

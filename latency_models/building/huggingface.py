"""Reads the shape and the precision of a model whose batch times can be composed from its config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape, StateShape
from servegym.latency_models.model_configs.kinds import Attention, Experts, Mlp, State
from servegym.latency_models.model_configs.precision import KV, WEIGHTS, kv_of, named
from servegym.latency_models.model_configs.reading import Architecture, read
from servegym.parsing import parse_json

CONFIG, QUANTISATION = "config.json", "hf_quant_config.json"  # the second beside one without quantization_config
COMPOSED = tuple(name for name in WEIGHTS if name != "int8")
INSTEAD = "aiconfigurator-core knows more models: --device SYSTEM:FOLDER, of the folder of its config.json"


@dataclass(frozen=True)
class Model:
    """A model to compose. name: of the model or its file. precision: of its experts, else of its weights, a key of
    WEIGHTS. left_out: parts and effects that a profile does not count.
    """

    name: str
    shape: DecoderShape
    precision: str
    left_out: tuple[str, ...] = ()


def read_model(path: Path, precision: str | None = None, kv_precision: str | None = None) -> Model:
    """Read the model of a config.json. precision, kv_precision: replace its own, of weights and of the KV cache.

    Raises the errors of `read_document` and `reading.read`, and ProfileError for a model that cannot be composed.
    """
    document = read_document(path)
    name = str(document.get("_name_or_path") or (path.parent.name if path.name == CONFIG else path.stem))
    return model_of(document, name, precision, str(path), kv_precision)


def read_document(path: Path) -> dict[str, Any]:
    """Read a config.json, and the quantisation from a hf_quant_config.json beside it. Raises ProfileError if it is not
    a JSON object."""
    document = read_config(path)
    beside = path.with_name(path.name.replace(CONFIG, QUANTISATION))
    if not document.get("quantization_config") and beside != path and beside.is_file():
        document["quantization_config"] = read_config(beside)
    return document


def read_config(path: Path) -> dict[str, Any]:
    """Read the JSON object of a model's config.json. Raises ProfileError for any other file."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ProfileError(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ProfileError(f"{path} is no JSON object; it should be a model's config.json")
    return document


def model_of(
    document: Mapping[str, Any], name: str, precision: str | None = None, where: str = "config",
    kv_precision: str | None = None,
) -> Model:  # fmt: skip
    """Read the model of a config. Raises the errors of `read_model`."""
    if kv_precision is not None and kv_precision not in KV:
        raise ProfileError(f"KV precision '{kv_precision}' is not known; there is {', '.join(KV)}")
    given = None if precision is None else named(precision, kv_precision or kv_of(document, where))
    architecture = read(document, where, given)
    if kv_precision is not None:
        of_all = dataclasses.replace(architecture.precision, kv=kv_precision)
        architecture = dataclasses.replace(architecture, precision=of_all)
    alone = all(isinstance(layer.mixer, State) and layer.mlp is None for layer in architecture.layers)
    shape = state_shape_of(architecture, where) if alone else shape_of(architecture, where)
    of_weights = architecture.precision
    word = of_weights.experts if isinstance(shape, MixtureShape) else of_weights.attention
    left_out = architecture.left_out + _approximated(architecture)
    return Model(name, shape, word, left_out)


def state_shape_of(model: Architecture, where: str) -> StateShape:
    """Make the shape of a model whose layers are states of one kind and size. Raises ProfileError for other states."""
    one, *others = {layer.mixer for layer in model.layers if isinstance(layer.mixer, State)}
    if others or one.scan is None:
        raise ProfileError(f"{where}: layers of the kind '{one.kind}' are not composed; {INSTEAD}")
    number_bytes = WEIGHTS[_of_products(model, where)]
    return StateShape(
        len(model.layers), model.hidden, model.vocabulary, one, one.scan, number_bytes=number_bytes, tied=model.tied
    )


def shape_of(model: Architecture, where: str) -> ModelShape:
    """Make the shape of a model with keys and values by head, equal in all layers but for windows.

    Raises ProfileError for other layers, and for products of several precisions, experts aside.
    """
    for layer in model.layers:
        if not isinstance(layer.mixer, Attention) or layer.mlp is None:
            kind = layer.mixer.kind if layer.mixer else "MLP or experts alone"
            raise ProfileError(f"{where}: layers of the kind '{kind}' are not composed; {INSTEAD}")
    attention = {dataclasses.replace(layer.mixer, window=0, local=False) for layer in model.layers}  # type: ignore[type-var]
    windows = {mixer.window for mixer in _windowed(model)}
    if len(attention) > 1 or len(windows) > 1:
        raise ProfileError(f"{where}: has layers with several kinds of heads or windows, not composed; {INSTEAD}")
    one: Attention = attention.pop()  # type: ignore[assignment]
    if one.gated or one.value_dim != one.head_dim or one.one_product or any(one.indexer):
        raise ProfileError(
            f"{where}: has gated attention, an indexer, or values of another width or of the keys' product, not "
            f"composed; {INSTEAD}"
        )
    of_weights, of_products = model.precision, _of_products(model, where)
    experts: set[Experts] = {layer.mlp for layer in model.layers if isinstance(layer.mlp, Experts)}
    dense = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Mlp)]
    gated = [mlp.gated for mlp in experts] + [mlp.gated for mlp in dense]
    if not all(gated) or any(mlp.latent for mlp in experts):
        raise ProfileError(f"{where}: has MLPs of two products, or latent experts, not composed; {INSTEAD}")
    words: dict[str, Any] = {
        "layers": len(model.layers), "hidden": model.hidden, "heads": one.heads, "kv_heads": one.kv_heads,
        "head_dim": one.head_dim, "vocabulary": model.vocabulary, "number_bytes": WEIGHTS[of_products],
        "kv_number_bytes": KV[of_weights.kv], "tied": model.tied, "windowed": len(_windowed(model)),
        "window": max(windows, default=0),
    }  # fmt: skip
    if not experts:
        if of_weights.experts not in (of_weights.attention, "bf16"):
            raise ProfileError(f"{where}: precision {of_weights.experts} is one of experts, and the model has none")
        return ModelShape(**words, intermediate=dense[0].inner)
    (mixture,) = experts
    expert_bytes = WEIGHTS[of_weights.experts] if of_weights.experts != of_weights.attention else None
    return MixtureShape(
        **words, intermediate=mixture.inner, experts=mixture.count, chosen=mixture.chosen, shared=mixture.shared,
        expert_number_bytes=expert_bytes, dense_layers=len(dense), dense=dense[0].inner if dense else 0,
    )  # fmt: skip


def _of_products(model: Architecture, where: str) -> str:
    """Return the precision of all products but experts, a key of WEIGHTS. Raises ProfileError if it is not composed."""
    precision = model.precision
    if precision.attention != precision.mlp or precision.attention not in COMPOSED:
        raise ProfileError(
            f"{where}: weights of {precision} are not composed, but {', '.join(COMPOSED)} of all products or of "
            "experts beside others; give --precision"
        )
    return precision.attention


def _windowed(model: Architecture) -> list[Attention]:
    return [layer.mixer for layer in model.layers if isinstance(layer.mixer, Attention) and layer.mixer.window]


def _approximated(model: Architecture) -> tuple[str, ...]:
    approximated = []
    if any(mixer.local for mixer in _windowed(model)):
        approximated.append("that windows do not slide: attention takes the time of sliding ones")
    if model.precision.activations == "nvfp4":
        approximated.append("products of 4 bits by 4 bits: they take the time of 16-bit products")
    return tuple(approximated)

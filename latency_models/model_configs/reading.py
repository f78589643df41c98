"""Reads a model from its config.json: its layers, their weights, and their memory of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.model_configs.keys import Fields
from servegym.latency_models.model_configs.kinds import Attention, Experts, Latent, Layer, State
from servegym.latency_models.model_configs.mixers import mixers
from servegym.latency_models.model_configs.mlps import mlps
from servegym.latency_models.model_configs.precision import (
    ATTENTION,
    EXPERTS,
    KV,
    MLP,
    WEIGHTS,
    Precision,
    precision_of,
)

NESTED = ("text_config", "llm_config", "language_config")  # of models of several modalities
# Models whose LM head is the input embedding by default.
TIED = (
    "gemma", "gemma2", "gemma3_text", "gemma4_text", "cohere", "cohere2", "falcon", "starcoder2", "mamba",
    "falcon_mamba",
)  # fmt: skip
NUMBER_BYTES = 2  # of an embedding, a norm, an activation


@dataclass(frozen=True)
class Architecture:
    """A decoder. tied: the LM head is the input embedding. left_out: parts of the model that are not counted."""

    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[Layer, ...]
    precision: Precision
    left_out: tuple[str, ...] = ()

    @property
    def embeddings(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def norms(self) -> int:
        return self.hidden * (1 + sum((layer.mixer is not None) + (layer.mlp is not None) for layer in self.layers))

    @property
    def parameters(self) -> int:
        return self.embeddings + self.norms + sum(self.parts().values())

    @property
    def weight_bytes(self) -> int:
        precision = {part: WEIGHTS[getattr(self.precision, part)] for part in (ATTENTION, MLP, EXPERTS)}
        products = sum(count * precision[part] for part, count in self.parts().items())
        return NUMBER_BYTES * (self.embeddings + self.norms) + int(products)

    def parts(self) -> Counter[str]:
        """Count the weights of all layers' products, by the part of a `Precision`."""
        weights: Counter[str] = Counter()
        for layer in self.layers:
            weights[ATTENTION] += layer.mixer.weights if layer.mixer else 0
            if isinstance(layer.mlp, Experts):
                weights[EXPERTS] += layer.mlp.count * layer.mlp.expert
                weights[MLP] += layer.mlp.beside
            elif layer.mlp:
                weights[MLP] += layer.mlp.weights
        return weights

    def token_bytes(self, mixer: Attention | Latent, devices: int = 1) -> float:
        """Return the bytes that a layer keeps of a token on each device."""
        return mixer.token_numbers(devices) * KV[self.precision.kv] + mixer.index_bytes

    def by_token(self) -> list[Attention | Latent]:
        """Return the mixers of the layers that keep tokens."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, (Attention, Latent))]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in the layers that keep every token."""
        return int(sum(self.token_bytes(mixer) for mixer in self.by_token() if not mixer.window))

    @property
    def window_bytes(self) -> int:
        """The most bytes that the layers with windows keep of a request."""
        return int(sum(mixer.window * self.token_bytes(mixer) for mixer in self.by_token()))

    @property
    def state_bytes(self) -> int:
        """Bytes that layers with states keep of a request."""
        return sum(layer.mixer.bytes() for layer in self.layers if isinstance(layer.mixer, State))

    @property
    def keeps_less(self) -> bool:
        """Whether some layers do not keep all tokens of a request."""
        return any(layer.mixer is None or isinstance(layer.mixer, State) or layer.mixer.window for layer in self.layers)

    @property
    def kinds(self) -> Counter[str]:
        """Number of layers by kind of memory."""
        return Counter(layer.mixer.kind if layer.mixer else "none" for layer in self.layers)


def read(document: Mapping[str, Any], where: str, precision: Precision | None = None) -> Architecture:
    """Read the model of a config.json. precision: replaces its own.

    Raises ProfileError for a field that is missing or out of range, for an unknown kind of layer, and for unknown keys
    that may change size or speed.
    """
    fields, left_out = language_model(document, where)
    hidden = fields.number("hidden_size", "d_model", "n_embd")
    listed = fields.document.get("layers_block_type") or ()
    count = fields.number("num_hidden_layers", "n_layers", "n_layer", otherwise=len(listed) or None)
    of_layers = mixers(fields, count, hidden)
    layers = tuple(Layer(*both) for both in zip(of_layers, mlps(fields, count, hidden), strict=True))
    kind = fields.document.get("model_type")
    tied = fields.take("tie_word_embeddings", otherwise=document.get("tie_word_embeddings", kind in TIED))
    vocabulary = fields.number("vocab_size")
    quantisation = fields.take("quantization_config") or document.get("quantization_config")
    fields.check_all_taken()
    if precision is None:
        precision = precision_of(quantisation, where, layers_of_parts(layers))
    return Architecture(hidden, vocabulary, bool(tied), layers, precision, left_out)


def layers_of_parts(layers: tuple[Layer, ...]) -> dict[str, set[int]]:
    """Find the layers that have each part of a `Precision`."""
    experts = {i for i, layer in enumerate(layers) if isinstance(layer.mlp, Experts)}
    return {
        ATTENTION: {i for i, layer in enumerate(layers) if layer.mixer},
        MLP: {i for i, layer in enumerate(layers) if layer.mlp} - {
            i for i in experts if not getattr(layers[i].mlp, "shared", 0)
        },
        EXPERTS: experts,
    }  # fmt: skip


def language_model(document: Mapping[str, Any], where: str) -> tuple[Fields, tuple[str, ...]]:
    """Return the fields of the language model, and the parts left out. Raises ProfileError if there are two models."""
    left_out = []
    nested = [key for key in NESTED if isinstance(document.get(key), dict)]
    if len(nested) > 1:
        raise ProfileError(f"{where}: has {' and '.join(nested)}; which is the language model?")
    fields = Fields(document[nested[0]], f"{where}: {nested[0]}") if nested else Fields(document, where)
    if nested:
        left_out.append(f"all but the language model ({nested[0]}): encoders, their weights and time")
    if fields.document.get("num_nextn_predict_layers") or fields.document.get("mtp_num_hidden_layers"):
        left_out.append("layers that predict further tokens (MTP)")
    return fields, tuple(left_out)

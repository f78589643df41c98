"""The shape of a dense model, read from its Hugging Face config.json."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from servegym.errors import ProfileError, ProfilingError
from servegym.latency_models.building.huggingface import read_config, shape_of
from servegym.latency_models.building.shapes import MixtureShape
from servegym.latency_models.model_configs.reading import read


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A dense transformer with gated MLPs and grouped-query attention. Names are those of config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ProfilingError(f"model shape: {name} is {value!r}; it should be a whole number of 1 or more")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ProfilingError(
                f"model shape: {self.num_attention_heads} attention heads do not share {self.num_key_value_heads} "
                "key-value heads evenly"
            )

    @property
    def attention_width(self) -> int:
        """Width of a token's queries over all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Number of weights in the four matrix products of a layer."""
        return self.hidden_size * (self.qkv_width + self.attention_width + 3 * self.intermediate_size)


def read_shape(path: Path) -> ModelShape:
    """Read the shape of a dense model from a config.json.

    Raises ProfilingError for files that `model_configs.reading.read` refuses, and for a model with other layers.
    """
    try:
        shape = shape_of(read(read_config(path, ProfilingError), str(path)), str(path))
    except ProfileError as error:
        raise ProfilingError(str(error)) from None
    if isinstance(shape, MixtureShape) or shape.windowed:
        raise ProfilingError(f"{path}: has experts or sliding windows; only operators of dense models can be measured")
    return ModelShape(
        shape.hidden, shape.intermediate, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.vocabulary
    )

"""The shape of a model, as its config.json on Hugging Face says it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from servegym.errors import ProfilingError
from servegym.latency_models.building.huggingface import read_config


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A dense transformer with gated MLPs and grouped-query attention. Names as in config.json."""

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
        """Weights of the four products of a layer."""
        return self.hidden_size * (self.qkv_width + self.attention_width + 3 * self.intermediate_size)


def read_shape(path: Path) -> ModelShape:
    """The shape in a JSON file; head_dim may be missing (hidden size / heads), and key-value heads (as many as heads).

    Raises ProfilingError for a file that is none, and a field that is missing or out of range.
    """
    document = read_config(path, ProfilingError)
    heads, hidden = document.get("num_attention_heads"), document.get("hidden_size")
    if isinstance(heads, int) and heads > 0 and isinstance(hidden, int):
        document = {"head_dim": hidden // heads, "num_key_value_heads": heads} | {
            name: value for name, value in document.items() if value is not None
        }
    names = [field.name for field in dataclasses.fields(ModelShape)]
    missing = [name for name in names if name not in document]
    if missing:
        raise ProfilingError(f"{path}: {', '.join(missing)} missing; it should be a model's config.json")
    return ModelShape(**{name: document[name] for name in names})

"""Shapes of the models whose batch times are composed: what they compute and what they keep in memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder with grouped-query attention, a gated MLP and 16-bit weights and cache."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    @property
    def weight_bytes(self) -> int:
        """Input and output embeddings (untied), projections and norms."""
        projections = self.hidden * (self.qkv_width + self.heads * self.head_dim + 3 * self.intermediate)
        layers = self.layers * (projections + 2 * self.hidden)
        return 2 * (2 * self.vocabulary * self.hidden + layers + self.hidden)


LLAMA_3_8B = ModelShape(32, 4096, 32, 8, 128, 14336, 128256)
QWEN3_8B = ModelShape(36, 4096, 32, 8, 128, 12288, 151936)

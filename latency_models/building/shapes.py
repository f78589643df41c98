"""Shapes of the models whose batch times are composed: sizes of their layers, weights and memory of a token."""

from dataclasses import dataclass, field

from servegym.latency_models.model_configs.kinds import Scan, State


class DecoderShape:
    """Sizes of any decoder. number_bytes: of a weight of the layers' products; embeddings, the LM head, norms and
    activations have 16 bits. tied: the LM head is the input embedding.
    """

    layers: int
    hidden: int
    vocabulary: int
    number_bytes: float
    kv_number_bytes: int
    tied: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in the layers that keep all tokens."""
        raise NotImplementedError

    @property
    def used_weights(self) -> int:
        """Weights of all layers' products that one token goes through."""
        raise NotImplementedError

    @property
    def norm_weights(self) -> int:
        raise NotImplementedError

    @property
    def weight_bytes(self) -> int:
        """Bytes of input and output embeddings, projections and norms."""
        return self.read_bytes + (0 if self.tied else 2 * self.vocabulary * self.hidden)

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a batch of one token reads: all but the input embedding."""
        return 2 * (self.vocabulary * self.hidden + self.norm_weights) + int(self.number_bytes * self.used_weights)


@dataclass(frozen=True)
class StateShape(DecoderShape):
    """A decoder whose layers are all Mamba or Mamba-2, of one size, without MLPs. state: of a layer."""

    layers: int
    hidden: int
    vocabulary: int
    state: State
    scan: Scan
    number_bytes: float = field(default=2, kw_only=True)
    kv_number_bytes: int = field(default=2, kw_only=True)
    tied: bool = field(default=False, kw_only=True)

    @property
    def kv_bytes_per_token(self) -> int:
        return 0

    @property
    def used_weights(self) -> int:
        return self.layers * self.state.weights

    @property
    def norm_weights(self) -> int:
        return self.layers * self.hidden + self.hidden


@dataclass(frozen=True)
class ModelShape(DecoderShape):
    """A dense decoder with grouped-query attention and a gated MLP.

    kv_number_bytes: of a cached key or value. windowed: number of layers that attend to the last `window` tokens only,
    and keep no others. Biases of projections and norms inside attention are not counted: they are below 0.01 % of the
    weights.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    number_bytes: float = field(default=2, kw_only=True)
    kv_number_bytes: int = field(default=2, kw_only=True)
    tied: bool = field(default=False, kw_only=True)
    windowed: int = field(default=0, kw_only=True)
    window: int = field(default=0, kw_only=True)

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's key and value in the layers without windows."""
        return 2 * (self.layers - self.windowed) * self.kv_heads * self.head_dim * self.kv_number_bytes

    @property
    def mlp_weights(self) -> int:
        """Weights of all layers' MLPs that one token goes through."""
        return 3 * self.layers * self.hidden * self.intermediate

    @property
    def used_weights(self) -> int:
        attention = self.hidden * (self.qkv_width + self.heads * self.head_dim)
        return self.layers * attention + self.mlp_weights

    @property
    def norm_weights(self) -> int:
        return self.layers * 2 * self.hidden + self.hidden


@dataclass(frozen=True)
class MixtureShape(ModelShape):
    """A decoder whose MLPs are mixtures: a token goes to `chosen` of `experts` gated MLPs of `intermediate` width.

    shared: width of an MLP beside them that all tokens go through; 0: none. expert_number_bytes: of a weight of an
    expert; None: as of other weights. dense_layers: number of layers that have an MLP of `dense` width instead.
    """

    experts: int
    chosen: int
    shared: int = field(default=0, kw_only=True)
    expert_number_bytes: float | None = field(default=None, kw_only=True)
    dense_layers: int = field(default=0, kw_only=True)
    dense: int = field(default=0, kw_only=True)

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def bytes_of_expert_weights(self) -> float:
        return self.number_bytes if self.expert_number_bytes is None else self.expert_number_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes as of a dense decoder; experts may have weights of another size."""
        chosen = 3 * self.expert_layers * self.chosen * self.hidden * self.intermediate
        return super().read_bytes + int((self.bytes_of_expert_weights - self.number_bytes) * chosen)

    @property
    def mlp_weights(self) -> int:
        of_experts = 3 * self.chosen * self.intermediate + 3 * self.shared + self.experts
        return self.hidden * (self.expert_layers * of_experts + 3 * self.dense_layers * self.dense)

    @property
    def expert_bytes(self) -> int:
        return int(self.bytes_of_expert_weights * 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        return super().weight_bytes + self.expert_layers * (self.experts - self.chosen) * self.expert_bytes

"""Parts of layers: their weights, and their memory of a request. Biases and norms inside them are not counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Attention with keys and values by head. window: tokens that it attends to and keeps; 0: all. local: windows do
    not slide, but begin at multiples of their length. gated: the query projection also makes a gate. one_product: one
    projection makes both keys and values, which are kept separately. indexer: heads and width of the indexer that
    chooses blocks of tokens (MSA) and keeps one key a token, in 16 bits.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    local: bool = False
    gated: bool = False
    one_product: bool = False
    indexer: tuple[int, int] = (0, 0)

    @property
    def kind(self) -> str:
        whole = "full, indexed" if self.indexer[0] else "full"
        return f"{'local' if self.local else 'window'} {self.window}" if self.window else whole

    @property
    def weights(self) -> int:
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        keys = self.kv_heads * (self.head_dim + (0 if self.one_product else self.value_dim))
        heads, width = self.indexer
        return self.hidden * (queries + keys + self.heads * self.value_dim + heads * width + width)

    @property
    def index_bytes(self) -> int:
        return 2 * self.indexer[1]

    def token_numbers(self, devices: int = 1) -> float:
        """Return the numbers that each device keeps of a token; with fewer key heads than devices, heads are
        replicated."""
        return max(1, self.kv_heads // devices) * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class Latent:
    """Latent attention (MLA), which keeps `rank` numbers of a token for all heads, and `rope` for its position.

    query_rank: 0: queries are not compressed. indexer: heads and width of the sparse attention's indexer (DSA), whose
    numbers are kept in 8 bits, with a scale of 32 bits for each 128.
    """

    hidden: int
    heads: int
    query_rank: int
    rank: int
    nope: int
    rope: int
    value_dim: int
    indexer: tuple[int, int] = (0, 0)
    gated: bool = False
    window = 0

    @property
    def kind(self) -> str:
        return "latent, indexed" if self.indexer[0] else "latent"

    @property
    def weights(self) -> int:
        queries = self.heads * (self.nope + self.rope)
        of_queries = self.query_rank * (self.hidden + queries) if self.query_rank else self.hidden * queries
        of_keys = self.hidden * (self.rank + self.rope) + self.rank * self.heads * (self.nope + self.value_dim)
        out = self.heads * self.value_dim * self.hidden * (2 if self.gated else 1)
        heads, width = self.indexer
        of_indexer = self.query_rank * heads * width + self.hidden * (width + heads)
        return of_queries + of_keys + out + of_indexer

    def token_numbers(self, devices: int = 1) -> float:
        return self.rank + self.rope

    @property
    def index_bytes(self) -> int:
        width = self.indexer[1]
        return width + 4 * (-(-width // 128)) if width else 0


@dataclass(frozen=True)
class Scan:
    """Sizes of a Mamba or Mamba-2 layer. inner: its channels; state: numbers of each channel's state; convolved:
    channels of the convolution. rank: width from which Mamba projects step sizes. heads, groups: of Mamba-2; chunk:
    tokens that its kernels compute as matrix products.
    """

    inner: int
    state: int
    convolved: int
    rank: int = 0
    heads: int = 0
    groups: int = 0
    chunk: int = 0

    def convolved_on(self, devices: int) -> int:
        """Return the convolution's channels on each device. vLLM copies groups until each device has one."""
        copies = devices - self.groups if self.groups % devices else 0
        return (self.convolved + 2 * copies * self.state) // devices


@dataclass(frozen=True)
class State:
    """A layer with a state of fixed size for a request. kind: Mamba, gated delta, ...

    conv_numbers: last inputs of its convolution, stored as activations; numbers: of the state itself, of number_bytes
    each. scan: sizes of a Mamba or Mamba-2 layer; None: of another kind.
    """

    kind: str
    weights: int
    conv_numbers: int
    numbers: int
    number_bytes: int
    scan: Scan | None = None

    def bytes(self, devices: int = 1, conv_bytes: int = 2) -> int:
        """Return the bytes that each device keeps of a request."""
        conv_numbers = self.conv_numbers // devices
        if self.scan is not None:
            conv_numbers = self.conv_numbers // self.scan.convolved * self.scan.convolved_on(devices)
        return conv_numbers * conv_bytes + self.numbers * self.number_bytes // devices


Mixer = Attention | Latent | State


@dataclass(frozen=True)
class Mlp:
    """An MLP of `inner` width; gated: three products, else two."""

    hidden: int
    inner: int
    gated: bool = True

    @property
    def weights(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.inner

    used = weights


@dataclass(frozen=True)
class Experts:
    """Experts: a token goes to `chosen` of `count` MLPs of `inner` width, and through a shared MLP of width `shared`,
    which may be 0.

    latent: width to which the experts' inputs are projected, and from which outputs are projected back; 0: none.
    """

    hidden: int
    count: int
    chosen: int
    inner: int
    shared: int = 0
    gated: bool = True
    latent: int = 0

    @property
    def expert(self) -> int:
        return (3 if self.gated else 2) * (self.latent or self.hidden) * self.inner

    @property
    def beside(self) -> int:
        """Weights that all tokens use: the shared MLP, the router, and the projections."""
        return (
            Mlp(self.hidden, self.shared, self.gated).weights + self.hidden * self.count + 2 * self.hidden * self.latent
        )

    @property
    def weights(self) -> int:
        return self.beside + self.count * self.expert


@dataclass(frozen=True)
class Layer:
    """A layer. mixer: attention, or a state, which mixes tokens; mlp: applied to each token. None: it has none."""

    mixer: Mixer | None
    mlp: Mlp | Experts | None

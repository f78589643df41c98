"""Parts of layers: their weights, and what they keep of a request. Biases and norms inside them are not counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Keys and values by head. window: tokens that it attends to and keeps; 0: all. local: windows do not slide, but
    begin at multiples of their length. gated: the query product makes a gate too. one_product: it makes keys and values
    alike, which are kept apart. indexer: heads and width of what chooses blocks of tokens (MSA), which keeps one key of
    a token, in 16 bits.
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
        """Numbers that each of the devices keeps of a token; a key head is on several where there are too few."""
        return max(1, self.kv_heads // devices) * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class Latent:
    """Latent attention (MLA): `rank` numbers of a token for all heads, and `rope` of its position.

    query_rank: 0: queries are not compressed. indexer: heads and width of the sparse attention's indexer (DSA), which
    keeps 8 bits of each of its numbers, and a scale of 32 for each 128.
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
class State:
    """A layer that keeps the same of every request, whatever its length. kind: Mamba, gated delta, ...

    conv_numbers: the last inputs of its convolution, as activations are stored; numbers: of the state itself, of
    number_bytes each.
    """

    kind: str
    weights: int
    conv_numbers: int
    numbers: int
    number_bytes: int

    def bytes(self, devices: int = 1, conv_bytes: int = 2) -> int:
        """What each of the devices keeps of a request."""
        return (self.conv_numbers * conv_bytes + self.numbers * self.number_bytes) // devices


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
    """A token goes to `chosen` of `count` MLPs of `inner` width, and through `shared`, which may be 0 wide.

    latent: width that the experts' tokens are projected to and back from; 0: they are not.
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
        """Weights of one expert."""
        return (3 if self.gated else 2) * (self.latent or self.hidden) * self.inner

    @property
    def beside(self) -> int:
        """Weights that all tokens go through: the shared MLP, the router, and the projections."""
        return (
            Mlp(self.hidden, self.shared, self.gated).weights + self.hidden * self.count + 2 * self.hidden * self.latent
        )

    @property
    def weights(self) -> int:
        return self.beside + self.count * self.expert


@dataclass(frozen=True)
class Layer:
    """mixer: what tokens exchange something in; mlp: what each goes through alone. None: the layer has none."""

    mixer: Mixer | None
    mlp: Mlp | Experts | None

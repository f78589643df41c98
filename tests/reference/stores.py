"""Prefix stores: "Prefix stores" of docs/simulation.md."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engines import Engine
    from .requests import Request

WAYS = 16  # chunks in a set


@dataclass(frozen=True)
class PrefixStore:
    """The prefix store of each engine of a pool."""

    tokens: int
    load_s_per_token: float


@dataclass
class Store:
    """The chunks of a store by number; in each set the least recently used first."""

    size: PrefixStore
    chunk_tokens: int
    sets: dict[int, list[int]] = field(default_factory=dict)

    @property
    def load_s_per_token(self) -> float:
        return self.size.load_s_per_token

    def set_of(self, chunk: int) -> list[int]:
        number = max(1, self.size.tokens // (WAYS * self.chunk_tokens))
        return self.sets.setdefault(chunk % number, [])

    def of_prompt(self, r: "Request") -> list[int]:
        """Return the chunks of its prompt, without those of its answer."""
        return r.chunks[: r.prompt_tokens // self.chunk_tokens]

    def has(self, chunk: int) -> bool:
        return chunk in self.set_of(chunk)

    def use(self, chunk: int) -> None:
        """Use a chunk, which is in the store afterwards."""
        places = self.set_of(chunk)
        if chunk in places:
            places.remove(chunk)
        elif len(places) == WAYS:
            places.pop(0)
        places.append(chunk)

    def use_leading(self, chunks: list[int]) -> int:
        """Use the leading chunks that are here, and return their tokens."""
        found = 0
        for chunk in chunks:
            if not self.has(chunk):
                break
            self.use(chunk)
            found += 1
        return found * self.chunk_tokens

    def put(self, chunks: list[int]) -> None:
        for chunk in chunks:
            self.use(chunk)

    def empty(self) -> None:
        self.sets = {}


def index_of(engine: "Engine") -> Store | None:
    """Make the router's index of an engine: a store as large as its prefix store and KV memory together."""
    rooms = []
    if engine.store is not None:
        rooms.append((engine.store.size.tokens, engine.store.chunk_tokens))
    if engine.memory is not None:
        rooms.append((engine.total_blocks * engine.block_tokens, engine.memory.chunk_tokens))
    if not rooms:
        return None
    return Store(PrefixStore(sum(tokens for tokens, _ in rooms), 0.0), rooms[0][1])

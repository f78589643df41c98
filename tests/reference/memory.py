"""KV blocks with names: "Names of blocks", "Memory" and "Finding" of docs/feature_rules.md."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engines import Batch
    from .requests import Request

Name = tuple[str, int, int]


@dataclass(eq=False)
class Block:
    name: Name | None = None
    references: int = 0


class Memory:
    """KV memory of an engine that caches prefixes. chunk_tokens: of the chunks that requests list. stored_blocks: size
    of the host memory for overwritten blocks."""

    def __init__(self, total_blocks: int, block_tokens: int, chunk_tokens: int, stored_blocks: int = 0) -> None:
        self.block_tokens, self.chunk_tokens = block_tokens, chunk_tokens
        self.stored_blocks = stored_blocks
        self.stored: list[Name] = []  # the least recently used first
        self.free = [Block() for _ in range(total_blocks)]  # the next to be taken first
        self.named: dict[Name, list[Block]] = {}  # in the order they were named
        self.changed: dict[Block, None] = {}  # since the router was told
        self.admitted_tokens = self.cached_tokens = self.regained_tokens = self.overwritten_blocks = 0

    def name_of(self, r: "Request", i: int) -> Name:
        chunk = ((i + 1) * self.block_tokens - 1) // self.chunk_tokens
        return ("chunk", r.chunks[chunk], i) if chunk < len(r.chunks) else ("own", r.index, i)

    def look_up(self, r: "Request") -> None:
        """Find the first blocks of r that are here; at least one token is computed anew."""
        found: list[Block] = []
        while len(found) < (r.context - 1) // self.block_tokens:
            blocks = self.named.get(self.name_of(r, len(found)))
            if not blocks:
                break
            found.append(blocks[0])
        r.found, r.found_tokens = found, len(found) * self.block_tokens

    def find_stored(self, r: "Request", first: int) -> int:
        """Return how many of r's blocks from `first` on are in host memory."""
        count = 0
        while first + count < (r.context - 1) // self.block_tokens and self.name_of(r, first + count) in self.stored:
            count += 1
        return count

    def use_stored(self, name: Name) -> None:
        if name in self.stored:
            self.stored.remove(name)
        elif len(self.stored) == self.stored_blocks:
            self.stored.pop(0)
        self.stored.append(name)

    def hold(self, r: "Request", found: list[Block]) -> None:
        for block in found:
            if block.references == 0:
                self.free.remove(block)
            block.references += 1
        r.table = list(found)

    def grow(self, r: "Request", tokens: int) -> None:
        """Give r blocks for this many tokens."""
        while len(r.table) * self.block_tokens < tokens:
            r.table.append(self.take())

    def take(self) -> Block:
        """Take the next free block, for one request."""
        block = self.free.pop(0)
        self.overwritten_blocks += block.name is not None
        if block.name is not None and self.stored_blocks > 0:
            self.use_stored(block.name)
        self.forget(block)
        block.references = 1
        return block

    def release(self, block: Block) -> None:
        """Decrement the block's reference count."""
        block.references -= 1
        if block.references == 0:
            self.free.insert(0 if block.name is None else len(self.free), block)

    def drop(self, r: "Request", processed: int) -> int:
        """Return how many blocks r still has without those that no later token sees; here all are seen."""
        return r.blocks

    def name(self, r: "Request", tokens: int) -> None:
        """Name the blocks that the first `tokens` of r fill, now or when the batch ends."""
        for i, block in enumerate(r.table[: tokens // self.block_tokens]):
            if block.name is None:
                block.name = self.name_of(r, i)
                self.named.setdefault(block.name, []).append(block)
                self.changed[block] = None

    def forget(self, block: Block) -> None:
        """Take the block's name away."""
        if block.name is not None:
            self.named[block.name].remove(block)
            self.changed[block] = None
            block.name = None

    def awaits_state(self, r: "Request", batch: "Batch") -> bool:
        """Return whether the batch being formed computes the state that r has found."""
        return False

    def checkpoints(self, r: "Request", start: int, end: int) -> int:
        """Return the blocks of states that a chunk of r writes beside that at its end."""
        return 0

    def chunk(self, r: "Request", chunk: int, most_tokens: float) -> int:
        """Return the chunk, cut to where a state is kept."""
        return chunk

    def back(self, r: "Request", chunk: int) -> int:
        """Return the chunk, cut again, back to where a state is kept."""
        return chunk

    def give_up(self, r: "Request") -> None:
        """Free all blocks of r; its computed tokens stay as they were."""
        for block in r.table[r.computed // self.block_tokens :]:
            self.forget(block)
        for block in reversed(r.table):
            self.release(block)
        r.table = []

    def is_hollow(self, r: "Request") -> bool:
        """Return whether a block that r counts as computed has lost its name."""
        return any(
            block.name is None for block in r.table[: min(r.computed, r.context - r.under_way) // self.block_tokens]
        )

    def lose_names(self) -> None:
        for blocks in list(self.named.values()):
            for block in list(blocks):
                self.forget(block)
        self.changed, self.stored = {}, []

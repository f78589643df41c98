"""KV blocks with names in groups of layers: "Prefix caching with groups" of docs/feature_rules.md."""

import math
from typing import TYPE_CHECKING

from .kv_groups import CachedState, KvGroup, with_caching
from .memory import Block, Memory, Name

if TYPE_CHECKING:
    from .engines import Batch
    from .requests import Request

Row = dict[int, Block]  # by place


class GroupedMemory(Memory):
    """Memory of an engine with groups, which take blocks in this order: full ones, then windows, then states."""

    def __init__(self, total_blocks: int, groups: list[KvGroup], chunk_tokens: int) -> None:
        super().__init__(total_blocks, 1, chunk_tokens)
        self.groups = with_caching(groups)
        self.step = math.lcm(*(group.block_tokens for group in self.groups))
        self.rows: dict[Request, list[Row]] = {}  # of those that hold blocks
        self.junctions: dict[Request, int] = {}
        self.hits: dict[Request, int] = {}  # tokens found at the admission
        self.tokens: dict[Request, int] = {}  # for which they have taken blocks
        self.seen: set[Name] | None = None  # names of blocks that the engine has published to a router

    def name_in(self, r: "Request", g: int, i: int) -> tuple:
        chunk = ((i + 1) * self.groups[g].block_tokens - 1) // self.chunk_tokens
        return ("chunk", r.chunks[chunk], i, g) if chunk < len(r.chunks) else ("own", r.index, i, g)

    def has(self, r: "Request", kind: KvGroup, i: int) -> bool:
        """Return whether all groups of a kind have block i of r."""
        return all(self.is_named(self.name_in(r, g, i)) for g, group in enumerate(self.groups) if group == kind)

    def is_named(self, name: Name) -> bool:
        return bool(self.named.get(name)) if self.seen is None else name in self.seen

    def found_by(self, r: "Request", names: set[Name], most: int) -> int:
        """Return the tokens, `most` at most, that r would find if the blocks here had these names."""
        self.seen = names
        longest = self.longest(r, most)
        found = self.hit(r, most if longest is None else longest)
        self.seen = None
        return found

    def longest(self, r: "Request", most: int) -> int | None:
        """Return the tokens, `most` at most, of the prefix of r that full groups have; None: no full groups."""
        full = [group for group in self.groups if not group.window and not group.state]
        if not full:
            return None
        size, found = full[0].block_tokens, 0
        while (found + 1) * size <= most and self.has(r, full[0], found):
            found += 1
        return found * size - found * size % self.step

    def hit(self, r: "Request", most: int) -> int:
        """Return the tokens of the longest prefix, `most` at most, for which windows have the blocks that the next
        token sees, and states their state."""
        windows = [group for group in self.groups if group.window or group.state]
        if not windows:
            return most
        window, size = windows[0], windows[0].block_tokens
        if window.local:
            start = most - most % window.window
            end = start // size
            while (end + 1) * size <= most and self.has(r, window, end):
                end += 1
            return end * size
        need = max(1, -(-(window.window - 1) // size))  # of states one
        for tokens in range(most - most % self.step, 0, -self.step):
            end = tokens // size
            if all(self.has(r, window, i) for i in range(max(0, end - need), end)):
                return tokens
        return 0

    def look_up(self, r: "Request") -> None:
        longest = self.longest(r, r.context - 1)
        r.found_tokens = self.hit(r, r.context - 1 if longest is None else longest)
        self.junctions[r] = longest if longest is not None and longest > r.found_tokens else 0
        r.found = [block for row in self.found_rows(r) for block in row.values()]

    def found_rows(self, r: "Request") -> list[Row]:
        seen = [(group.first(r.found_tokens), group.block_tokens) for group in self.groups]
        return [
            {i: self.named[self.name_in(r, g, i)][0] for i in range(first // size, r.found_tokens // size)}
            for g, (first, size) in enumerate(seen)
        ]

    def find_stored(self, r: "Request", first: int) -> int:
        return 0

    def awaits_state(self, r: "Request", batch: "Batch") -> bool:
        """Return whether the batch being formed computes the state that r has found."""
        for g, group in enumerate(self.groups):
            place = r.found_tokens // group.block_tokens - 1
            for other, _ in batch:
                block = self.rows[other][g].get(place) if isinstance(group, CachedState) else None
                if block and block.name == self.name_in(r, g, place) and other.computed < r.found_tokens:
                    return True
        return False

    def hold(self, r: "Request", found: list[Block]) -> None:
        self.rows[r], self.hits[r], self.tokens[r] = self.found_rows(r), r.found_tokens, r.found_tokens
        super().hold(r, found)

    def drop(self, r: "Request", processed: int) -> int:
        """Free the blocks that have left the windows of r. Returns how many blocks r still has."""
        for group, row in zip(self.groups, self.rows[r], strict=True):
            for i in sorted((i for i in row if i < group.first(processed) // group.block_tokens), reverse=True):
                self.release(row.pop(i))
        return sum(len(row) for row in self.rows[r])

    def grow(self, r: "Request", tokens: int) -> None:
        for group, row in zip(self.groups, self.rows[r], strict=True):
            places = range(-(-self.tokens[r] // group.block_tokens), -(-tokens // group.block_tokens))
            if group.state:
                places = places[-2:] if self.has_checkpoint(r, group, r.cached, tokens) else places[-1:]
            for i in places:
                row[i] = self.take()
        self.tokens[r] = max(self.tokens[r], tokens)

    def name(self, r: "Request", tokens: int) -> None:
        for g, (group, row) in enumerate(zip(self.groups, self.rows.get(r, []), strict=False)):
            size = group.block_tokens
            for i, block in row.items():
                full = (i + 1) * size <= tokens - tokens % self.step
                if full and block.name is None and self.is_kept(r, group, i):
                    block.name = self.name_in(r, g, i)
                    self.named.setdefault(block.name, []).append(block)
                    self.changed[block] = None

    def is_kept(self, r: "Request", group: KvGroup, i: int) -> bool:
        """Return whether a later request may need block i of a group of r."""
        if group.local or not (group.window or group.state):
            return True
        need = 1 if group.state else -(-(group.window - 1) // group.block_tokens)
        prompt = r.prompt_tokens - 1
        ends = [tokens // group.block_tokens for tokens in (prompt - prompt % self.step, self.junctions[r])]
        return any(end - need <= i < end for end in ends)

    def checkpoints(self, r: "Request", start: int, end: int) -> int:
        return sum(self.has_checkpoint(r, group, start, end) for group in self.groups)

    def has_checkpoint(self, r: "Request", group: KvGroup, start: int, end: int) -> bool:
        if not isinstance(group, CachedState):
            return False
        return group.has_checkpoint(start, end, max(r.prompt_tokens, r.context - 1))

    def chunk(self, r: "Request", chunk: int, most_tokens: float) -> int:
        """Return the chunk, cut to where a state is kept. most_tokens: the longest possible chunk."""
        states = [group for group in self.groups if group.state]
        if not states:
            return chunk
        size, start = states[0].block_tokens, r.cached
        end, last = start + chunk, max(r.prompt_tokens, r.context - 1)
        if end < last and (end - end % size > start or size <= most_tokens):
            end -= end % size
        stops = [self.junction_after(r, start, end) // size * size]
        if not (self.has_checkpoint(r, states[0], start, start + chunk) and (last - 1) // size * size >= start + size):
            stops.append((r.context - 1) // size * size)
        if start % size:
            stops.append(start + size - start % size)
        return max(0, min([end, *(stop for stop in stops if start < stop < end)]) - start)

    def junction_after(self, r: "Request", start: int, end: int) -> int:
        junction = self.junctions[r]
        return junction if start < junction < end else 0

    def back(self, r: "Request", chunk: int) -> int:
        """Return the chunk, cut to the last end of a block of states in it, if there is one."""
        for group in self.groups:
            end = r.cached + chunk
            if group.state and end - end % group.block_tokens > r.cached:
                return end - end % group.block_tokens - r.cached
        return chunk

    def give_up(self, r: "Request") -> None:
        for group, row in zip(self.groups, self.rows.pop(r, []), strict=False):
            for i, block in row.items():
                if (i + 1) * group.block_tokens > r.computed:
                    self.forget(block)
            for i in sorted(row, reverse=True):
                self.release(row[i])
        r.table = []

    def is_hollow(self, r: "Request") -> bool:
        found = self.hits[r]
        return any(
            block.name is None and (i + 1) * group.block_tokens <= found
            for group, row in zip(self.groups, self.rows[r], strict=True)
            for i, block in row.items()
        )

"""KV blocks with names in groups of layers: "Prefix caching with groups" of docs/feature_rules.md."""

import math
from typing import TYPE_CHECKING

from .kv_groups import KvGroup
from .memory import Block, Memory

if TYPE_CHECKING:
    from .requests import Request

Row = dict[int, Block]  # by place


class GroupedMemory(Memory):
    """Of an engine with groups, in the order in which they take blocks: full ones, then windows."""

    def __init__(self, total_blocks: int, groups: list[KvGroup], chunk_tokens: int) -> None:
        super().__init__(total_blocks, 1, chunk_tokens)
        self.groups = sorted(groups, key=lambda group: group.window > 0)
        self.step = math.lcm(*(group.block_tokens for group in groups))
        self.rows: dict[Request, list[Row]] = {}  # of those that hold blocks
        self.junctions: dict[Request, int] = {}
        self.hits: dict[Request, int] = {}  # tokens found at the admission
        self.tokens: dict[Request, int] = {}  # for which they have taken blocks

    def name_in(self, r: "Request", g: int, i: int) -> tuple:
        chunk = ((i + 1) * self.groups[g].block_tokens - 1) // self.chunk_tokens
        return ("chunk", r.chunks[chunk], i, g) if chunk < len(r.chunks) else ("own", r.index, i, g)

    def has(self, r: "Request", windows: bool, i: int) -> bool:
        """All full groups, or all windows, have block i of r."""
        groups = [g for g, group in enumerate(self.groups) if (group.window > 0) == windows]
        return all(self.named.get(self.name_in(r, g, i)) for g in groups)

    def longest(self, r: "Request") -> int | None:
        """Tokens that full groups have of the beginning of r; None: there are none."""
        full = [group for group in self.groups if not group.window]
        if not full:
            return None
        size, found = full[0].block_tokens, 0
        while (found + 1) * size <= r.context - 1 and self.has(r, False, found):
            found += 1
        return found * size - found * size % self.step

    def hit(self, r: "Request", most: int) -> int:
        """Tokens of the longest beginning, up to `most`, of which windows have what comes next sees."""
        windows = [group for group in self.groups if group.window]
        if not windows:
            return most
        window, size = windows[0], windows[0].block_tokens
        if window.local:
            start = most - most % window.window
            end = start // size
            while (end + 1) * size <= most and self.has(r, True, end):
                end += 1
            return end * size
        need = max(1, -(-(window.window - 1) // size))
        for tokens in range(most - most % self.step, 0, -self.step):
            end = tokens // size
            if all(self.has(r, True, i) for i in range(max(0, end - need), end)):
                return tokens
        return 0

    def look_up(self, r: "Request") -> None:
        longest = self.longest(r)
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

    def hold(self, r: "Request", found: list[Block]) -> None:
        self.rows[r], self.hits[r], self.tokens[r] = self.found_rows(r), r.found_tokens, r.found_tokens
        super().hold(r, found)

    def drop(self, r: "Request", processed: int) -> int:
        """What has left the windows of r is free. Returns how many blocks r has left."""
        for group, row in zip(self.groups, self.rows[r], strict=True):
            for i in sorted((i for i in row if i < group.first(processed) // group.block_tokens), reverse=True):
                self.release(row.pop(i))
        return sum(len(row) for row in self.rows[r])

    def grow(self, r: "Request", tokens: int) -> None:
        for group, row in zip(self.groups, self.rows[r], strict=True):
            for i in range(-(-self.tokens[r] // group.block_tokens), -(-tokens // group.block_tokens)):
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

    def is_kept(self, r: "Request", group: KvGroup, i: int) -> bool:
        """Whether a later request may need block i of a group of r."""
        if not group.window or group.local:
            return True
        need = -(-(group.window - 1) // group.block_tokens)
        prompt = r.prompt_tokens - 1
        ends = [tokens // group.block_tokens for tokens in (prompt - prompt % self.step, self.junctions[r])]
        return any(end - need <= i < end for end in ends)

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

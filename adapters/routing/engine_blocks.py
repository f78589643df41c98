"""What an engine has told of its KV blocks, by group, and the names that they have in a router's tables.

A block is known by vLLM's hash of all token ids up to its end, which is the same in each group. Its name in the tables
is made of the number of the chunk that ends there (`request_terms.chunks_of`), its place, and its group, as the
simulator's blocks have it (named_blocks.py, grouped_prefixes.py).
"""

from __future__ import annotations

import itertools
import zlib
from array import array
from collections.abc import Sequence

from servegym.adapters.routing.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash
from servegym.adapters.routing.request_terms import LARGEST_NUMBER
from servegym.errors import RoutingError
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.records.named_blocks import NAMES_OF_A_CHUNK

MOST_PREFIXES = 4  # hashes whose tokens are remembered, for each block that is there
LEAST_PREFIXES = 4096
Key = tuple[int, Hash]  # group, hash


class EngineBlocks:
    """Blocks of one engine. groups: in vLLM's order; (): the model has one, of full attention.

    block_tokens: of a block without groups. chunk_tokens: of a chunk of a prompt. Raises RoutingError for blocks that
    do not end with chunks.
    """

    def __init__(self, groups: Sequence[KvCacheGroup], block_tokens: int, chunk_tokens: int):
        self.groups, self._sizes = tuple(groups), [group.block_tokens for group in groups] or [block_tokens]
        if any(size % chunk_tokens for size in self._sizes):
            raise RoutingError(f"KV events: blocks of {self._sizes} tokens do not end with chunks of {chunk_tokens}")
        full_first = sorted(range(len(groups)), key=lambda g: bool(groups[g].window or groups[g].state))
        self._places = {g: place for place, g in enumerate(full_first)} or {0: 0}
        self.names: dict[Key, tuple[int, int]] = {}  # of blocks that are there: name, and how many have it
        self._chunk_tokens = chunk_tokens
        # Tokens up to the end of a block; the numbers of its chunks, or of the last of them.
        self._prefixes: dict[Hash, tuple[int, tuple[int, ...]]] = {}
        self._before: dict[Hash, list[tuple[Hash, int]]] = {}  # hashes that end a block of so many tokens before it
        self._unknown: dict[Key, int] = {}  # blocks whose tokens are not known: how many there are
        self._rows: dict[int, list[int]] = {}  # of the router's table, by name
        self._free: list[int] = []

    def __len__(self) -> int:
        return sum(count for _, count in self.names.values())

    def rows_anew(self, rows: int) -> list[tuple[int, int]]:
        """All blocks in the rows of an empty table of so many: row and name of each."""
        self._free, self._rows = list(range(rows - 1, -1, -1)), {}
        return [(self.row_for(name), name) for name, count in list(self.names.values()) for _ in range(count)]

    @property
    def has_free_rows(self) -> bool:
        return bool(self._free)

    def row_for(self, name: int) -> int:
        """The row that a block gets; the caller has seen that there is room."""
        row = self._free.pop()
        self._rows.setdefault(name, []).append(row)
        return row

    def free_row(self, name: int) -> int:
        """The row of a block that has lost its name."""
        rows = self._rows[name]
        row = rows.pop()
        if not rows:
            del self._rows[name]
        self._free.append(row)
        return row

    def apply(self, event: Event) -> tuple[list[int], list[int]]:
        """Names that blocks have got, and names that they have lost, of one block each. `check` has taken the event."""
        if isinstance(event, AllBlocksCleared):
            lost = [name for name, count in self.names.values() for _ in range(count)]
            self.names, self._prefixes, self._unknown, self._before = {}, {}, {}, {}
            return [], lost
        if isinstance(event, BlockRemoved):
            return [], [name for one in event.hashes for name in self._remove((event.group, one))]
        return self._store(event), []

    @property
    def block_tokens(self) -> int:
        """Of a block; with groups the smallest."""
        return min(self._sizes)

    def check(self, event: Event) -> None:
        """Raise RoutingError for a group or a block size that the engine is not known to have."""
        if isinstance(event, AllBlocksCleared):
            return
        if event.group not in self._places:
            raise RoutingError(
                f"KV event: it is of group {event.group}; the device's profile has {len(self._sizes)}: name the "
                "model's profile"
            )
        size = self._sizes[event.group]
        if isinstance(event, BlockStored) and event.block_tokens != size and not self._is_part(event):
            raise RoutingError(
                f"KV event: blocks of group {event.group} have {event.block_tokens} tokens; the device's profile has "
                f"{size}: name the model's profile"
            )

    def _is_part(self, event: BlockStored) -> bool:
        """Whether it is of the beginning of a block, which vLLM finds by itself only if told to (prefix_match_unit)."""
        return len(event.token_ids) == event.block_tokens < self._sizes[event.group]

    def _store(self, event: BlockStored) -> list[int]:
        if self._is_part(event):
            return []
        got, size = [], event.block_tokens
        begin = (0, (0,)) if event.parent is None else self._prefixes.get(event.parent)
        if event.alike and begin is not None and len(event.hashes) == len(event.token_ids) // size:
            tokens, number = begin[0], begin[1][-1]
            ids = array("q", event.token_ids)
            for one in event.hashes:
                numbers = []
                for first in range(tokens - begin[0], tokens - begin[0] + size, self._chunk_tokens):
                    number = zlib.crc32(ids[first : first + self._chunk_tokens].tobytes(), number)
                    numbers.append(number)
                tokens += size
                got += self._learn(one, tokens, tuple(numbers))
        elif event.alike:  # blocks up to one where a hit may end are kept: each is followed by the next, or a known one
            for one, after in reversed(list(itertools.pairwise(event.hashes))):
                self._before.setdefault(after, []).append((one, size))
                got += self._learn_before(after)
        for one in event.hashes:
            got += self._add((event.group, one), 1)
        self._forget_some()
        return got

    def _learn(self, one: Hash, tokens: int, numbers: tuple[int, ...]) -> list[int]:
        """A hash is of so many tokens; numbers: of the chunks of the block that it ends. Returns the names that blocks
        have got."""
        if one in self._prefixes:
            return self._learn_before(one)
        self._prefixes[one] = tokens, numbers
        waiting = [(key, self._unknown.pop(key)) for g in self._places if (key := (g, one)) in self._unknown]
        got = [name for key, count in waiting for name in self._add(key, count)]
        return got + self._learn_before(one)

    def _learn_before(self, one: Hash) -> list[int]:
        """Of hashes that are known to end a block before this one, if this one is known."""
        if one not in self._prefixes:
            return []
        (tokens, numbers), got = self._prefixes[one], []
        for before, size in self._before.pop(one, []):
            back = size // self._chunk_tokens
            if back < len(numbers) and before not in self._prefixes:
                got += self._learn(before, tokens - size, (numbers[-1 - back],))
        return got

    def _add(self, key: Key, count: int) -> list[int]:
        """So many more blocks of a group and hash; returns the names that blocks have got."""
        group, one = key
        if one not in self._prefixes:
            self._unknown[key] = self._unknown.get(key, 0) + count
            return []
        tokens, numbers = self._prefixes[one]
        name, before = self.names.get(key, (self._name(group, tokens, numbers[-1]), 0))
        self.names[key] = name, before + count
        return [name] * count

    def _remove(self, key: Key) -> list[int]:
        """One block less; returns the name that it had."""
        if key in self._unknown:
            self._unknown[key] -= 1
            if not self._unknown[key]:
                del self._unknown[key]
        elif key in self.names:
            name, count = self.names[key]
            if count == 1:
                del self.names[key]
            else:
                self.names[key] = name, count - 1
            return [name]
        return []  # it was stored before anyone listened

    def _name(self, group: int, tokens: int, number: int) -> int:
        i, place = tokens // self._sizes[group] - 1, self._places[group]
        beside = i * (len(self.groups) - 1) + place if self.groups else 0
        return ((number & LARGEST_NUMBER) + 1) * NAMES_OF_A_CHUNK + i + beside

    def _forget_some(self) -> None:
        """Forget the tokens of hashes that no group has any more, the oldest first; they may be others' parents."""
        if len(self._before) > LEAST_PREFIXES:
            self._before.clear()
        if len(self._prefixes) <= max(LEAST_PREFIXES, MOST_PREFIXES * len(self.names)):
            return
        there = {one for _, one in self.names}
        spare = [one for one in self._prefixes if one not in there]
        for one in spare[: len(spare) // 2 + 1]:
            del self._prefixes[one]

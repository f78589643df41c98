"""Keeps the KV blocks that engines have published, and their names in the tables in which policies look prompts up.

A block is known by vLLM's hash of all token ids up to its end, which is the same in each group. Its name in the tables
is made of the number of the chunk that ends there (`request_terms.chunks_of`), its place, and its group, as the
simulator's blocks have it (named_blocks.py, grouped_prefixes.py).
"""

from __future__ import annotations

import itertools
import zlib
from array import array
from collections.abc import Sequence

from servegym.adapters.routing import kernels
from servegym.adapters.routing.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash
from servegym.adapters.routing.request_terms import LARGEST_NUMBER, first_number
from servegym.errors import RoutingError
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.records.named_blocks import NAMES_OF_A_CHUNK, empty_named_blocks, no_names
from servegym.simulator.records.signatures import Known

MOST_PREFIXES = 4  # hashes whose tokens are remembered, for each block that is there
LEAST_PREFIXES = 4096
Key = tuple[int, Hash]  # group, hash


class EngineBlocks:
    """Keeps the published blocks of one engine.

    groups: KV cache groups in vLLM's order; (): the model has one, of full attention. block_tokens: tokens of a block
    without groups. chunk_tokens: tokens of a chunk of a prompt. Raises RoutingError for blocks that do not end with
    chunks.
    """

    def __init__(self, groups: Sequence[KvCacheGroup], block_tokens: int, chunk_tokens: int):
        self.groups, self._sizes = tuple(groups), [group.block_tokens for group in groups] or [block_tokens]
        if any(size % chunk_tokens for size in self._sizes):
            raise RoutingError(f"KV events: blocks of {self._sizes} tokens do not end with chunks of {chunk_tokens}")
        full_first = sorted(range(len(groups)), key=lambda g: bool(groups[g].window or groups[g].state))
        self._places = {g: place for place, g in enumerate(full_first)} or {0: 0}
        self.names: dict[Key, tuple[int, int]] = {}  # name of the blocks in the cache, and number of blocks with it
        self._chunk_tokens = chunk_tokens
        # Tokens up to the end of a block, and the numbers of its chunks, or of its last chunk only.
        self._prefixes: dict[Hash, tuple[int, tuple[int, ...]]] = {}
        self._before: dict[Hash, list[tuple[Hash, int]]] = {}  # hash of the block before, and tokens between the ends
        self._unknown: dict[Key, int] = {}  # number of blocks whose tokens are not known
        self._rows: dict[int, list[int]] = {}  # rows of the router's table, by name
        self._free: list[int] = []

    def __len__(self) -> int:
        return sum(count for _, count in self.names.values())

    def rows_anew(self, rows: int) -> list[tuple[int, int]]:
        """Give all blocks rows of an empty table with `rows` rows. Returns the row and name of each."""
        self._free, self._rows = list(range(rows - 1, -1, -1)), {}
        return [(self.row_for(name), name) for name, count in list(self.names.values()) for _ in range(count)]

    @property
    def has_free_rows(self) -> bool:
        return bool(self._free)

    def row_for(self, name: int) -> int:
        """Take a free row for a block of this name; the caller has checked `has_free_rows`."""
        row = self._free.pop()
        self._rows.setdefault(name, []).append(row)
        return row

    def free_row(self, name: int) -> int:
        """Free the row of a block that has lost its name. Returns the row."""
        rows = self._rows[name]
        row = rows.pop()
        if not rows:
            del self._rows[name]
        self._free.append(row)
        return row

    def apply(self, event: Event) -> tuple[list[int], list[int]]:
        """Apply an event that `check` has accepted. Returns names gained and names lost, one for each block."""
        if isinstance(event, AllBlocksCleared):
            lost = [name for name, count in self.names.values() for _ in range(count)]
            self.names, self._prefixes, self._unknown, self._before = {}, {}, {}, {}
            return [], lost
        if isinstance(event, BlockRemoved):
            return [], [name for one in event.hashes for name in self._remove((event.group, one))]
        return self._store(event), []

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; with groups, of the smallest block."""
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
        """Whether only the beginning of a block was stored, which vLLM looks up with prefix_match_unit only."""
        return len(event.token_ids) == event.block_tokens < self._sizes[event.group]

    def _store(self, event: BlockStored) -> list[int]:
        if self._is_part(event):
            return []
        gained, size = [], event.block_tokens
        begin = (0, (first_number(event.adapter),)) if event.parent is None else self._prefixes.get(event.parent)
        if event.alike and begin is not None and len(event.hashes) == len(event.token_ids) // size:
            tokens, number = begin[0], begin[1][-1]
            ids = array("q", event.token_ids)
            for one in event.hashes:
                numbers = []
                for first in range(tokens - begin[0], tokens - begin[0] + size, self._chunk_tokens):
                    number = zlib.crc32(ids[first : first + self._chunk_tokens].tobytes(), number)
                    numbers.append(number)
                tokens += size
                gained += self._learn(one, tokens, tuple(numbers))
        elif event.alike:  # a window keeps the blocks up to where a hit may end; each is followed by the next
            for one, after in reversed(list(itertools.pairwise(event.hashes))):
                self._before.setdefault(after, []).append((one, size))
                gained += self._learn_before(after)
        for one in event.hashes:
            gained += self._add((event.group, one), 1)
        self._forget_some()
        return gained

    def _learn(self, one: Hash, tokens: int, numbers: tuple[int, ...]) -> list[int]:
        """Note the tokens up to the end of a block, and the numbers of its chunks. Returns names gained."""
        if one in self._prefixes:
            return self._learn_before(one)
        self._prefixes[one] = tokens, numbers
        waiting = [(key, self._unknown.pop(key)) for g in self._places if (key := (g, one)) in self._unknown]
        gained = [name for key, count in waiting for name in self._add(key, count)]
        return gained + self._learn_before(one)

    def _learn_before(self, one: Hash) -> list[int]:
        """Learn the hashes of blocks before this one, if its own tokens are known. Returns names gained."""
        if one not in self._prefixes:
            return []
        (tokens, numbers), gained = self._prefixes[one], []
        for before, size in self._before.pop(one, []):
            back = size // self._chunk_tokens
            if back < len(numbers) and before not in self._prefixes:
                gained += self._learn(before, tokens - size, (numbers[-1 - back],))
        return gained

    def _add(self, key: Key, count: int) -> list[int]:
        """Add `count` blocks of a group and hash. Returns names gained."""
        group, one = key
        if one not in self._prefixes:
            self._unknown[key] = self._unknown.get(key, 0) + count
            return []
        tokens, numbers = self._prefixes[one]
        name, before = self.names.get(key, (self._name(group, tokens, numbers[-1]), 0))
        self.names[key] = name, before + count
        return [name] * count

    def _remove(self, key: Key) -> list[int]:
        """Remove one block of a group and hash. Returns the name that it had, in a list."""
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
        return []  # it was stored before the router subscribed

    def _name(self, group: int, tokens: int, number: int) -> int:
        i, place = tokens // self._sizes[group] - 1, self._places[group]
        beside = i * (len(self.groups) - 1) + place if self.groups else 0
        return ((number & LARGEST_NUMBER) + 1) * NAMES_OF_A_CHUNK + i + beside

    def _forget_some(self) -> None:
        """Forget tokens of hashes that no group holds any more, the oldest first, as some may be parents of blocks."""
        if len(self._before) > LEAST_PREFIXES:
            self._before.clear()
        if len(self._prefixes) <= max(LEAST_PREFIXES, MOST_PREFIXES * len(self.names)):
            return
        there = {one for _, one in self.names}
        spare = [one for one in self._prefixes if one not in there]
        for one in spare[: len(spare) // 2 + 1]:
            del self._prefixes[one]


class PublishedBlocks:
    """Keeps the published blocks of all engines in the tables `Prefixes.published`.

    Tables may be made anew: each method returns the `Known` to use from then on.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, EngineBlocks] = {}

    def note(self, known: Known, e: int, groups: Sequence[KvCacheGroup], events: Sequence[Event]) -> Known:
        """Apply events that engine e has published. Raises RoutingError, and applies none, if one does not fit its
        groups."""
        snapshots, blocks = known.snapshots, self._blocks.get(e)
        sizes = [event.block_tokens for event in events if isinstance(event, BlockStored)]
        if blocks is None:
            size = sizes[0] if sizes and not groups else int(snapshots["block_tokens"][e])
            blocks = EngineBlocks(groups, size, int(known.prefixes.chunk_tokens))
        for event in events:
            blocks.check(event)
        if e not in self._blocks:
            self._blocks[e] = blocks
            snapshots["publishes"][e] = 1
            if not groups:
                snapshots["block_tokens"][e] = blocks.block_tokens
            known = self.place(known, e)
        for event in events:
            gained, lost = blocks.apply(event)
            for name in lost:
                kernels.set_name.entry(known, e, blocks.free_row(name), 0)
            for name in gained:
                if not blocks.has_free_rows:
                    known = self.place(known, e)  # all blocks of this event are in `blocks` already
                    break
                kernels.set_name.entry(known, e, blocks.row_for(name), name)
        return known

    def forget(self, known: Known, e: int) -> Known:
        """Forget all published blocks of engine e."""
        return known if self._blocks.pop(e, None) is None else _emptied(known, e, 0)

    def take(self, known: Known, e: int, before: PublishedBlocks) -> Known:
        """Take over the blocks of engine e from `before`, which must not be used again."""
        if e in before._blocks:
            self._blocks[e] = before._blocks[e]
        return self.place(known, e)

    def place(self, known: Known, e: int) -> Known:
        """Write all blocks of engine e to the tables anew, with room for twice as many."""
        if e not in self._blocks:
            return known
        blocks = self._blocks[e]
        rows = max(int(known.snapshots["total_blocks"][e]), 2 * len(blocks))
        known = _emptied(known, e, rows)
        for row, name in blocks.rows_anew(known.prefixes.published.shape[1]):
            kernels.set_name.entry(known, e, row, name)
        return known


def _emptied(known: Known, e: int, rows: int) -> Known:
    """Empty the table of engine e, and give each engine `rows` rows at least."""
    published = known.prefixes.published
    if published.shape[1] < rows:
        longer = empty_named_blocks([rows] * len(published))
        longer[:, : published.shape[1]] = published
        known = known._replace(prefixes=known.prefixes._replace(published=longer, places=no_names(longer)))
        kernels.place_names.entry(known)
    known.prefixes.published[e] = empty_named_blocks([known.prefixes.published.shape[1]])[0]
    known.prefixes.places[e] = 0
    return known

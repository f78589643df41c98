"""What engines have told of their KV blocks, in the tables in which policies look prompts up (Prefixes.told)."""

from __future__ import annotations

from collections.abc import Sequence

from servegym.adapters.routing import kernels
from servegym.adapters.routing.engine_blocks import EngineBlocks
from servegym.adapters.routing.kv_events import BlockStored, Event
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.records.named_blocks import empty_named_blocks
from servegym.simulator.records.signatures import Known


class Told:
    """By engine. Tables may be made anew: each method returns what is known from then on."""

    def __init__(self) -> None:
        self._blocks: dict[int, EngineBlocks] = {}

    def note(self, known: Known, e: int, groups: Sequence[KvCacheGroup], events: Sequence[Event]) -> Known:
        """Engine e tells of blocks. Raises RoutingError for events of which one does not fit its groups: then none
        counts."""
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
            got, lost = blocks.apply(event)
            for name in lost:
                kernels.tell.entry(known, e, blocks.free_row(name), 0)
            for name in got:
                if not blocks.has_free_rows:
                    known = self.place(known, e)  # with all of this event
                    break
                kernels.tell.entry(known, e, blocks.row_for(name), name)
        return known

    def forget(self, known: Known, e: int) -> Known:
        """Engine e has nothing of what it told."""
        return known if self._blocks.pop(e, None) is None else _emptied(known, e, 0)

    def take(self, known: Known, e: int, before: Told) -> Known:
        """What engine e has told `before`, which is not used again."""
        if e in before._blocks:
            self._blocks[e] = before._blocks[e]
        return self.place(known, e)

    def place(self, known: Known, e: int) -> Known:
        """Put all that engine e has told into the tables anew, with room for twice as much."""
        if e not in self._blocks:
            return known
        blocks = self._blocks[e]
        rows = max(int(known.snapshots["total_blocks"][e]), 2 * len(blocks))
        known = _emptied(known, e, rows)
        for row, name in blocks.rows_anew(known.prefixes.told.shape[1]):
            kernels.tell.entry(known, e, row, name)
        return known


def _emptied(known: Known, e: int, rows: int) -> Known:
    """With so many rows for each engine at least; of engine e they are empty."""
    told = known.prefixes.told
    if told.shape[1] < rows:
        longer = empty_named_blocks([rows] * len(told))
        longer[:, : told.shape[1]] = told
        known = known._replace(prefixes=known.prefixes._replace(told=longer))
    known.prefixes.told[e] = empty_named_blocks([known.prefixes.told.shape[1]])[0]
    return known

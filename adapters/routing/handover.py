"""From one live router to the next, with requests under way: another policy, or more engines."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from servegym.adapters.routing import kernels
from servegym.adapters.routing.live import LiveRouter

SAID = ("total_blocks", "block_tokens", "free_blocks", "busy_until_s", "finished", "finished_tokens")


def hand_over(before: LiveRouter, after: LiveRouter, now_s: float, fresh: Collection[int] = ()) -> None:
    """Let another router take the place of one, with its requests, wherever they are, and what it knows of engines.

    after: made now, of the same engines by number, and perhaps more. fresh: numbers whose engine is another one than
    before; it is closed until `set_open` says otherwise, as one more engine is. Another policy begins without what the
    old one kept of its own. Requests at an engine count as sent there now. Those held are asked about anew by
    `ask_again`. `before` must not be used again.
    """
    rows = after.rows = before.rows
    after._known = after._known._replace(prefixes=after._known.prefixes._replace(offsets=rows.offsets))
    same = [e for e in range(len(before.engines)) if e not in fresh]
    for e in same:
        _copy_engine(before, after, e)
    if after.policy is before.policy:
        after._state[same] = before._state[same]
        after.snapshots["tier"][same] = before.snapshots["tier"][same]
    _send_again(after, now_s)
    _hold_again(after)
    for e, snapshot in enumerate(after.snapshots):
        known = before.snapshots[e] if e in same else None
        snapshot.up, snapshot.closed = (0, 0) if known is None else (known.up, known.closed)
    after.fallbacks = before.fallbacks
    after._dirty = True


def _copy_engine(before: LiveRouter, after: LiveRouter, e: int) -> None:
    """What engine e has said, and what was sent there, as far as chunks are cut alike and there is as much room."""
    old = before.snapshots[e]
    after.set_memory(e, int(old.total_blocks), int(old.block_tokens))
    after._reported[e] = before._reported[e]
    after._all_report = bool(after._reported.all())
    new = after.snapshots[e]
    for name in SAID:
        new[name] = old[name]
    mine, others, sets = after.known.prefixes, before.known.prefixes, int(old.index_sets)
    if mine.chunk_tokens == others.chunk_tokens and sets == new.index_sets:
        mine.sent[e, :sets] = others.sent[e, :sets]
        new.index_uses = old.index_uses


def _send_again(after: LiveRouter, now_s: float) -> None:
    """Requests at engines, in the order in which they were sent, with the tokens that have come since."""
    rows = after.rows
    present = np.flatnonzero(rows.taken & (rows.engine >= 0))
    for r in map(int, sorted(present, key=lambda r: rows.sent_number[r])):
        emitted, first_s, since = int(rows.emitted[r]), rows.first_token_s[r], int(rows.outcomes[r].sent_tokens)
        rows.emitted[r] = since
        after._send(now_s, r, int(rows.engine[r]))
        if emitted > since:
            after.token(now_s, r, emitted - since)
        rows.first_token_s[r] = first_s


def _hold_again(after: LiveRouter) -> None:
    """Requests that wait, in the order in which they came."""
    rows = after.rows
    present = np.flatnonzero(rows.taken & (rows.held_queue >= 0))
    for r in map(int, sorted(present, key=lambda r: rows.table["arrival_s"][r])):
        after._hold(r, int(kernels.tier_of_row.entry(rows.table, after._known.tiers, r)))

"""Replaces a live router by another, with requests under way: for another policy, or for more engines."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from servegym.adapters.routing import kernels
from servegym.adapters.routing.live import LiveRouter
from servegym.simulator.records.fields import longer
from servegym.simulator.records.types import ENGINE_SNAPSHOT

OWN = {"index", "kind", "role", "tier", "index_sets", "index_uses"}  # fields that each router sets itself
SAME = [name for name in ENGINE_SNAPSHOT.names or () if name not in OWN]


def hand_over(before: LiveRouter, after: LiveRouter, now_s: float, fresh: Collection[int] = ()) -> None:
    """Replace a router by another, which takes over its requests and what it knows of engines.

    after: a new router of the same engines, and perhaps more. fresh: numbers of engines that have replaced another;
    they are closed until `set_open` opens them, as added engines are. The same policy keeps its state; another policy
    begins with an empty one. `ask_again` asks the policy about held requests anew. `before` must not be used again.
    """
    rows = after.rows = before.rows
    after._known = after._known._replace(prefixes=after._known.prefixes._replace(offsets=rows.offsets))
    loras = max(one.known.adapters.shape[1] for one in (before, after))  # engines may have reported more than assumed
    after._known = longer(after._known, {"loras": loras})
    after.snapshots["up"] = after.snapshots["closed"] = 0
    same = [e for e in range(len(before.engines)) if e not in fresh]
    for e in same:
        after.set_memory(e, int(before.snapshots["total_blocks"][e]), int(before.snapshots["block_tokens"][e]))
    _send_again(after, now_s)
    for e in same:
        _copy_engine(before, after, e)
    after._reported[same] = before._reported[same]
    after._all_report = bool(after._reported.all())
    if after.policy.label == before.policy.label:
        after._state[same] = before._state[same]
        after.snapshots["tier"][same] = before.snapshots["tier"][same]
    _hold_again(after)
    after.fallbacks = before.fallbacks
    after._dirty = True


def _copy_engine(before: LiveRouter, after: LiveRouter, e: int) -> None:
    """Copy what is known of engine e, and the index of what was sent there if chunks and room are the same."""
    old, new = before.snapshots[e], after.snapshots[e]
    for name in SAME:
        new[name] = old[name]
    after.known.adapters[e, : before.known.adapters.shape[1]] = before.known.adapters[e]
    mine, others, sets = after.known.prefixes, before.known.prefixes, int(old.index_sets)
    if mine.chunk_tokens == others.chunk_tokens and sets == new.index_sets:
        mine.sent[e, :sets] = others.sent[e, :sets]
        new.index_uses = old.index_uses
    after.take_published(e, before)


def _send_again(after: LiveRouter, now_s: float) -> None:
    """Send the requests at engines again, in the order of their sending, with the tokens that have come since."""
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
    """Hold the waiting requests again, in the order of their arrival."""
    rows = after.rows
    present = np.flatnonzero(rows.taken & (rows.held_queue >= 0))
    for r in map(int, sorted(present, key=lambda r: rows.table["arrival_s"][r])):
        after._hold(r, int(kernels.tier_of_row.entry(rows.table, after._known.tiers, r)))

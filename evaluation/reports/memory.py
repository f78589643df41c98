"""The KV memory of the engines over a recorded run: the sum of what each request held."""

from __future__ import annotations

import numpy as np

from servegym.evaluation.reports.timeline_events import computed_tokens, request_events, timeline_events
from servegym.simulator.memory.kv_groups import blocks_held
from servegym.simulator.records.types import (
    BATCH_END,
    BATCH_START,
    DEPARTED,
    EVICTED,
    FINISH,
    FOUND,
    LOADED,
    RECALLED,
    RECEIVED,
    SCHEDULED,
    SENT,
    STOPPED,
)
from servegym.simulator.runs.results import Result

TAKE, GIVE_BACK = (SCHEDULED, LOADED, FOUND), (EVICTED, RECALLED, FINISH)


def kv_blocks(result: Result) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (time_s, blocks) for each engine: steps of the KV blocks in use, from 0 before the first.

    A request that moves to another engine holds its old blocks until its KV has arrived, and its new ones from the
    moment the KV is sent. With prefix caching requests share blocks: see `_shared`.
    """
    events, _ = request_events(result)
    moving = np.isin(events["kind"], (SENT, STOPPED))
    chosen = np.isin(events["kind"], (*TAKE, *GIVE_BACK, DEPARTED, RECEIVED))
    on_link, computed, events = events[moving], computed_tokens(events)[chosen], events[chosen]
    pools = result.scenario.deployment.pools
    pool_of = [pool for pool in pools for _ in range(pool.engines)]  # of each engine
    block_tokens = np.array([pool.block_tokens for pool in pool_of])[events["engine"]]

    chunk = np.where(np.isin(events["kind"], TAKE), events["tokens"], 0)
    held = np.where(np.isin(events["kind"], GIVE_BACK), 0, -(-(computed + chunk) // block_tokens))
    same = np.r_[False, events["request"][1:] == events["request"][:-1]][: len(events)]
    # A request keeps the blocks of rejected drafts.
    anew = np.cumsum(~same | np.isin(events["kind"], (*GIVE_BACK, DEPARTED, RECEIVED))) * (int(held.max(initial=0)) + 1)
    held = np.maximum.accumulate(held + anew) - anew
    for e, pool in enumerate(pool_of):
        here = (events["engine"] == e) & np.isin(events["kind"], TAKE)
        if pool.kv_groups and here.any():
            caching = pool.caches_prefixes(result.scenario.workload)
            held[here] = blocks_held(pool.kv_groups, computed[here], chunk[here], caching)
    before = np.where(same, np.r_[0, held[:-1]][: len(held)], 0)
    # When KV arrives its blocks are freed at the source; those at the destination were taken when it was sent.
    received = events["kind"] == RECEIVED
    source = events["engine"][np.flatnonzero(received) - 1]
    stopped = on_link["kind"] == STOPPED
    taken = np.where(stopped, -np.r_[0, on_link["tokens"][:-1]][: len(on_link)], on_link["tokens"])
    times = np.concatenate([events["time_s"], events["time_s"][received], on_link["time_s"]])
    engines = np.concatenate([events["engine"], source, on_link["engine"]])
    changes = np.concatenate([np.where(received, 0, held - before), -before[received], taken]).astype("i8")
    every = timeline_events(result)
    in_use = []
    for e, engine in enumerate(result.arrays.engines):
        found = steps(times[engines == e], changes[engines == e])
        in_use.append(_shared(every[every["engine"] == e], *found) if engine["cache"]["on"] else found)
    return in_use


def _shared(events: np.ndarray, time_s: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (time_s, blocks) of an engine whose requests share blocks.

    During an iteration: the blocks that its end recorded. Between two: the smaller of that and the blocks held, an
    upper bound. events: of the engine. time_s, held: steps of the blocks if none were shared.
    """
    ends = np.flatnonzero(events["kind"] == BATCH_END)
    starts = np.flatnonzero(events["kind"] == BATCH_START)
    if not len(ends):
        return time_s, held
    starts = starts[np.searchsorted(starts, ends) - 1]  # of those that have ended
    start_s, end_s, used = events["time_s"][starts], events["time_s"][ends], events["tokens"][ends].astype("i8")
    times = np.unique(np.concatenate([time_s, start_s, end_s]))
    holding = np.r_[0, held][np.searchsorted(time_s, times, "right")]
    last = np.searchsorted(start_s, times, "right") - 1
    running = (last >= 0) & (times < end_s[last])
    recorded = np.where(last >= 0, used[last], 0)
    return times, np.where(running, recorded, np.minimum(holding, recorded))


def steps(time_s: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the running sum of changes as (time_s, sum), only where it changes."""
    order = np.argsort(time_s, kind="stable")
    time_s, total = time_s[order], np.cumsum(change[order])
    last = np.r_[time_s[1:] != time_s[:-1], True][: len(time_s)]
    time_s, total = time_s[last], total[last]
    changed = np.r_[True, total[1:] != total[:-1]][: len(total)]
    return time_s[changed], total[changed]

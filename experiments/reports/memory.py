"""The KV memory of the engines over a recorded run, put together from what each request held."""

from __future__ import annotations

import numpy as np

from servegym.experiments.reports.told import computed_tokens, told
from servegym.simulator.results import Result
from servegym.simulator.types import (
    DEPARTED,
    EVICTED,
    FINISH,
    LOADED,
    RECALLED,
    RECEIVED,
    SCHEDULED,
    SENT,
    STOPPED,
)

TAKE, GIVE_BACK = (SCHEDULED, LOADED), (EVICTED, RECALLED, FINISH)


def kv_blocks(result: Result) -> list[tuple[np.ndarray, np.ndarray]]:
    """(time_s, blocks) for each engine: KV blocks in use from each of these times on, up to the next; 0 before the
    first.

    A request that has gone elsewhere holds its blocks until its KV has arrived there, and blocks there from when that
    is sent.
    """
    lines, _ = told(result)
    moving = np.isin(lines["kind"], (SENT, STOPPED))
    chosen = np.isin(lines["kind"], (*TAKE, *GIVE_BACK, DEPARTED, RECEIVED))
    on_link, computed, lines = lines[moving], computed_tokens(lines)[chosen], lines[chosen]
    pools = result.scenario.deployment.pools
    block_tokens = np.repeat([pool.block_tokens for pool in pools], [pool.engines for pool in pools])[lines["engine"]]

    after = computed + np.where(np.isin(lines["kind"], TAKE), lines["tokens"], 0)
    held = np.where(np.isin(lines["kind"], GIVE_BACK), 0, -(-after // block_tokens))
    same = np.r_[False, lines["request"][1:] == lines["request"][:-1]][: len(lines)]
    before = np.where(same, np.r_[0, held[:-1]][: len(held)], 0)
    # With its arrival the blocks are free where it came from; where it goes they were taken when it was sent.
    received = lines["kind"] == RECEIVED
    source = lines["engine"][np.flatnonzero(received) - 1]
    stopped = on_link["kind"] == STOPPED
    taken = np.where(stopped, -np.r_[0, on_link["tokens"][:-1]][: len(on_link)], on_link["tokens"])
    times = np.concatenate([lines["time_s"], lines["time_s"][received], on_link["time_s"]])
    engines = np.concatenate([lines["engine"], source, on_link["engine"]])
    changes = np.concatenate([np.where(received, 0, held - before), -before[received], taken]).astype("i8")
    return [steps(times[engines == e], changes[engines == e]) for e in range(result.scenario.deployment.engines)]


def steps(time_s: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of changes from each time on; times at which it stays as it is are left out."""
    order = np.argsort(time_s, kind="stable")
    time_s, total = time_s[order], np.cumsum(change[order])
    last = np.r_[time_s[1:] != time_s[:-1], True][: len(time_s)]
    time_s, total = time_s[last], total[last]
    changed = np.r_[True, total[1:] != total[:-1]][: len(total)]
    return time_s[changed], total[changed]

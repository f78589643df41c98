"""The KV memory of the engines over a recorded run, put together from what each request held."""

from __future__ import annotations

import numpy as np

from servegym.experiments.reports.told import computed_tokens, emitted_tokens, told
from servegym.simulator.cluster import Cluster
from servegym.simulator.results import Result
from servegym.simulator.types import DEPARTED, EVICTED, FINISH, LOADED, RECALLED, RECEIVED, SCHEDULED

TAKE, GIVE_BACK = (SCHEDULED, LOADED), (EVICTED, RECALLED, FINISH)


def kv_blocks(result: Result, engine: int) -> tuple[np.ndarray, np.ndarray]:
    """(time_s, blocks): KV blocks in use at an engine from each of these times on, up to the next; 0 before the first.

    A request that has gone elsewhere holds its blocks until its KV has arrived there, and blocks there from when that
    is sent. (Sending that came to nothing, since an engine failed, is not in the timeline and not in these.)
    """
    lines, _ = told(result)
    lines_of = np.isin(lines["kind"], (*TAKE, *GIVE_BACK, DEPARTED, RECEIVED))
    computed, emitted = computed_tokens(lines)[lines_of], emitted_tokens(lines)[lines_of]
    lines = lines[lines_of]
    pools = result.scenario.deployment.pools
    block_tokens = np.repeat([pool.block_tokens for pool in pools], [pool.engines for pool in pools])[lines["engine"]]

    takes = np.isin(lines["kind"], TAKE)
    after = computed + np.where(takes, lines["tokens"], 0)
    held = np.where(np.isin(lines["kind"], GIVE_BACK), 0, -(-after // block_tokens))
    same = np.r_[False, lines["request"][1:] == lines["request"][:-1]][: len(lines)]
    before = np.where(same, np.r_[0, held[:-1]][: len(held)], 0)
    where = np.r_[-1, lines["engine"][:-1]][: len(lines)]  # it held them there

    here = lines["engine"] == engine
    elsewhere = same & ~here & (where == engine)
    time_s = [lines["time_s"][here], lines["time_s"][elsewhere]]
    change = [(held - np.where(where == engine, before, 0))[here], -before[elsewhere]]
    deployment = result.scenario.deployment
    received = here & (lines["kind"] == RECEIVED)
    if isinstance(deployment, Cluster) and received.any():
        link = deployment.link
        # All is computed but the token that is out last.
        tokens = result.scenario.workload.table["prompt_tokens"][lines["request"]] + emitted - 1
        sending_s = link.latency_s + tokens * (link.bytes_per_token / link.bytes_per_s)
        time_s += [(lines["time_s"] - sending_s)[received], lines["time_s"][received]]
        change += [held[received], -held[received]]
    return steps(np.concatenate(time_s), np.concatenate(change).astype("i8"))


def steps(time_s: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of changes from each time on; times at which it stays as it is are left out."""
    order = np.argsort(time_s, kind="stable")
    time_s, total = time_s[order], np.cumsum(change[order])
    last = np.r_[time_s[1:] != time_s[:-1], True][: len(time_s)]
    time_s, total = time_s[last], total[last]
    changed = np.r_[True, total[1:] != total[:-1]][: len(total)]
    return time_s[changed], total[changed]

"""The KV memory of the engines over a recorded run, put together from what each request held."""

from __future__ import annotations

import numpy as np

from servegym.experiments.reports.told import computed_tokens, emitted_tokens, told
from servegym.simulator.cluster import Cluster
from servegym.simulator.results import Result
from servegym.simulator.types import DEPARTED, EVICTED, FINISH, LOADED, RECALLED, RECEIVED, SCHEDULED

TAKE, GIVE_BACK = (SCHEDULED, LOADED), (EVICTED, RECALLED, FINISH)


def kv_blocks(result: Result) -> list[tuple[np.ndarray, np.ndarray]]:
    """(time_s, blocks) for each engine: KV blocks in use from each of these times on, up to the next; 0 before the
    first.

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
    # What it held before; all lines from one RECEIVED to the next are at one engine.
    same = np.r_[False, lines["request"][1:] == lines["request"][:-1]][: len(lines)]
    before = np.where(same, np.r_[0, held[:-1]][: len(held)], 0)

    received = same & (lines["kind"] == RECEIVED)
    time_s = [lines["time_s"], lines["time_s"][received]]
    engine = [lines["engine"], lines["engine"][np.flatnonzero(received) - 1]]
    change = [held - np.where(received, 0, before), -before[received]]
    deployment = result.scenario.deployment
    if isinstance(deployment, Cluster) and received.any():
        link, prompts = deployment.link, result.scenario.workload.table["prompt_tokens"]
        # All is computed but the token that is out last.
        tokens = (prompts[lines["request"]] + emitted - 1)[received]
        sent_s = lines["time_s"][received] - (link.latency_s + tokens * (link.bytes_per_token / link.bytes_per_s))
        time_s += [sent_s, lines["time_s"][received]]
        engine += [lines["engine"][received]] * 2
        change += [held[received], -held[received]]
    times, engines, changes = np.concatenate(time_s), np.concatenate(engine), np.concatenate(change).astype("i8")
    return [steps(times[engines == e], changes[engines == e]) for e in range(deployment.engines)]


def steps(time_s: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of changes from each time on; times at which it stays as it is are left out."""
    order = np.argsort(time_s, kind="stable")
    time_s, total = time_s[order], np.cumsum(change[order])
    last = np.r_[time_s[1:] != time_s[:-1], True][: len(time_s)]
    time_s, total = time_s[last], total[last]
    changed = np.r_[True, total[1:] != total[:-1]][: len(total)]
    return time_s[changed], total[changed]

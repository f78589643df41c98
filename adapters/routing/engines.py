"""Makes the arrays of what a live router knows of its engines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from servegym.errors import RoutingError
from servegym.simulator.features.adapters import MOST_LORAS, Adapters, loras_noted
from servegym.simulator.inputs.deployment import EstimatorModel
from servegym.simulator.memory.grouped_prefixes import refused_with
from servegym.simulator.memory.kv_groups import KvCacheGroup, kinds_of
from servegym.simulator.memory.prefixes import empty_stores, sets_of
from servegym.simulator.records.fields import fresh, longer
from servegym.simulator.records.named_blocks import empty_named_blocks, no_names
from servegym.simulator.records.signatures import Estimates, Known, Prefixes
from servegym.simulator.records.types import ENGINE_KV_GROUPS, ENGINE_SNAPSHOT, POOL, ROLE_BOTH
from servegym.simulator.runs.arrays import fresh_estimates, fresh_tiers


@dataclasses.dataclass(frozen=True)
class LiveEngine:
    """What is assumed of an engine that prefills and decodes.

    estimator: estimates the time of its batches. total_blocks: KV memory, in blocks of block_tokens tokens. tier: from
    0; None: the common pool. prefix_cache_tokens: tokens of shared prefixes that it can cache, the size of the router's
    index of what was sent there; None: all of its KV memory. kv_groups: KV cache groups of its KV events, in vLLM's
    order; (): its model has one, of full attention. adapters: its memory for LoRA adapters; None: it serves none.
    """

    name: str
    estimator: EstimatorModel
    total_blocks: int
    block_tokens: int = 16
    tier: int | None = None
    prefix_cache_tokens: int | None = 0
    kv_groups: tuple[KvCacheGroup, ...] = ()
    adapters: Adapters | None = None

    def index_sets(self, total_blocks: int, block_tokens: int, chunk_tokens: int) -> int:
        """Return the number of sets of the router's index for this KV memory."""
        room = total_blocks * block_tokens if self.prefix_cache_tokens is None else self.prefix_cache_tokens
        return sets_of(room, chunk_tokens)


def estimates_of(kinds: list[EstimatorModel], engines: Sequence[LiveEngine]) -> Estimates:
    """Make the estimates of engines' batches. kinds: the different estimators among them."""
    coefficients = [engine.estimator.coefficients for engine in engines]
    together = np.zeros((len(engines), max(map(len, coefficients))))
    for row, numbers in zip(together, coefficients, strict=True):
        row[: len(numbers)] = numbers
    return fresh_estimates(kinds, together)


def known_of(
    kinds: list[EstimatorModel],
    engines: Sequence[LiveEngine],
    tiers: Sequence[float],
    chunk_tokens: int,
    offsets: np.ndarray,
    capacity: int,
) -> Known:
    """Make the records of engines, with lists for `capacity` requests of each. Raises RoutingError for KV cache groups
    whose events cannot be used."""
    snapshots = np.zeros(len(engines), ENGINE_SNAPSHOT)
    for e, (snapshot, engine) in enumerate(zip(snapshots, engines, strict=True)):
        snapshot.index, snapshot.pool, snapshot.role, snapshot.up = e, kinds.index(engine.estimator), ROLE_BOTH, 1
        snapshot.role_fixed, snapshot.role_change_s = 1, math.nan
        snapshot.tier = POOL if engine.tier is None else engine.tier
        snapshot.total_blocks = snapshot.free_blocks = engine.total_blocks
        snapshot.block_tokens = engine.block_tokens
        snapshot.index_sets = engine.index_sets(engine.total_blocks, engine.block_tokens, chunk_tokens)
        if engine.adapters is not None:
            numbers = engine.adapters.values
            snapshot.max_loras, snapshot.max_cpu_loras = numbers["max_loras"], numbers["max_cpu_loras"]
            snapshot.lora_load_s, snapshot.lora_activate_s = numbers["load_s"], numbers["activate_s"]
    nothing_published = empty_named_blocks([0] * len(engines))
    kinds_of_kv = np.zeros(len(engines), ENGINE_KV_GROUPS)
    for e, engine in enumerate(engines):
        what = refused_with(engine.kv_groups)
        if what is None and engine.kv_groups and all(group.window for group in engine.kv_groups):
            what = "windows alone, as vLLM does not report which of a prompt's blocks it has stored"
        if what is not None:
            raise RoutingError(f"engine {engine.name}: KV events are not read of {what}; leave out --kv-events-port")
        kinds_of_kv[e] = kinds_of(engine.kv_groups, f"engine {engine.name}", caching=True)
    sent = empty_stores(snapshots["index_sets"])
    of_engines = (sent, nothing_published, no_names(nothing_published), kinds_of_kv)
    prefixes = Prefixes(chunk_tokens, offsets, np.zeros(0, "i4"), *of_engines)
    loras = loras_noted(snapshots, MOST_LORAS["max_loras"])  # how many requests will name is not known
    sizes = {"engines": len(engines), "capacity": capacity, "loras": loras}
    return fresh(
        Known, sizes, snapshots=snapshots, tiers=fresh_tiers(np.array(tiers or (math.inf,))), prefixes=prefixes
    )


def with_index(known: Known, e: int, sets: int) -> Known:
    """Give engine e an index with `sets` sets: an empty one, unless its index has this size."""
    snapshots, prefixes = known.snapshots, known.prefixes
    if snapshots["index_sets"][e] == sets:
        return known
    snapshots["index_sets"][e] = sets
    sent = empty_stores(np.maximum(snapshots["index_sets"], prefixes.sent.shape[1]))
    sent[:, : prefixes.sent.shape[1]] = prefixes.sent
    sent[e] = np.zeros((), sent.dtype)
    return known._replace(prefixes=prefixes._replace(sent=sent))


def with_adapters(known: Known, e: int, running: Sequence[int], waiting: Sequence[int], max_loras: int) -> Known:
    """Set the LoRA adapters of running and of waiting requests of engine e, and max_loras, as it reports them.

    Those of running requests are in device memory; if these are more than max_loras, vLLM counts some that wait. The
    list of adapters sent there changes only where it says otherwise of one, or lacks a waiting one: this one becomes
    the latest.
    """
    snapshot = known.snapshots[e]
    snapshot.max_loras, snapshot.max_cpu_loras = max_loras, max(max_loras, snapshot.max_cpu_loras)
    if max_loras > known.adapters.shape[1]:
        known = longer(known, {"loras": max_loras})
    sent = known.adapters[e, : snapshot.max_cpu_loras]
    for adapters, places in ((waiting, len(sent)), (running, max_loras if len(running) <= max_loras else len(sent))):
        for adapter in adapters:
            if adapter not in sent[:places]:
                sent[:] = [adapter, *sent[sent != adapter]][: len(sent)]
    return known

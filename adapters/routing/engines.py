"""What a live router knows of its engines before anything has happened, and the arrays it is kept in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from servegym.simulator.arrays import fresh_estimates, fresh_tiers
from servegym.simulator.deployment import EstimatorModel
from servegym.simulator.fields import fresh
from servegym.simulator.named_blocks import empty_named_blocks
from servegym.simulator.prefixes import PrefixStore, empty_stores
from servegym.simulator.signatures import Estimates, Known, Prefixes
from servegym.simulator.types import ENGINE_SNAPSHOT, POOL, ROLE_BOTH


@dataclasses.dataclass(frozen=True)
class LiveEngine:
    """What is known beforehand of an engine that prefills and decodes.

    estimator: what the router believes its batches take. total_blocks: its KV memory, in blocks of block_tokens tokens.
    tier: from 0; None: the common pool. prefix_store: of its KV for prompts that begin alike; None: none is assumed.
    """

    name: str
    estimator: EstimatorModel
    total_blocks: int
    block_tokens: int = 16
    tier: int | None = None
    prefix_store: PrefixStore | None = None


def estimates_of(kinds: list[EstimatorModel], engines: Sequence[LiveEngine]) -> Estimates:
    """What is believed of their batches; kinds: the estimators there are."""
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
    """With lists for so many requests of each engine."""
    snapshots = np.zeros(len(engines), ENGINE_SNAPSHOT)
    for e, (snapshot, engine) in enumerate(zip(snapshots, engines, strict=True)):
        snapshot.index, snapshot.kind, snapshot.role, snapshot.up = e, kinds.index(engine.estimator), ROLE_BOTH, 1
        snapshot.tier = POOL if engine.tier is None else engine.tier
        snapshot.total_blocks = snapshot.free_blocks = engine.total_blocks
        snapshot.block_tokens = engine.block_tokens
        snapshot.index_sets = 0 if engine.prefix_store is None else engine.prefix_store.sets(chunk_tokens)
    nothing_told = empty_named_blocks([0] * len(engines))
    prefixes = Prefixes(chunk_tokens, offsets, np.zeros(0, "i4"), empty_stores(snapshots["index_sets"]), nothing_told)
    sizes = {"engines": len(engines), "capacity": capacity}
    return fresh(
        Known, sizes, snapshots=snapshots, tiers=fresh_tiers(np.array(tiers or (math.inf,))), prefixes=prefixes
    )

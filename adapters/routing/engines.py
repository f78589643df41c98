"""What a live router knows of its engines before anything has happened, and the arrays it is kept in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from servegym.simulator.arrays import fresh_tiers, of_kinds
from servegym.simulator.compilation import compiled
from servegym.simulator.deployment import EstimatorModel
from servegym.simulator.prefixes import PrefixStore, empty_stores, use_chunks
from servegym.simulator.signatures import PREFIXES, Estimates, Known, Prefixes, array
from servegym.simulator.types import BATCH, PLACE, POOL, ROLE_BOTH, VIEW


@compiled(types.int64(PREFIXES, array(PLACE, 2), types.int64, types.int64, types.int64))
def note_chunks(prefixes, store, sets, r, uses):
    """`use_chunks`, to be called from Python without being compiled in each process."""
    return use_chunks(prefixes, store, sets, r, uses)


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
    return Estimates(
        of_kinds([kind.batch_s.value for kind in kinds]),
        of_kinds([kind.request_s.value for kind in kinds]),
        together,
        np.zeros(2, BATCH),
    )


def known_of(
    kinds: list[EstimatorModel],
    engines: Sequence[LiveEngine],
    tiers: Sequence[float],
    chunk_tokens: int,
    offsets: np.ndarray,
    capacity: int,
) -> Known:
    """With lists for so many requests of each engine."""
    views = np.zeros(len(engines), VIEW)
    for e, (view, engine) in enumerate(zip(views, engines, strict=True)):
        view.index, view.kind, view.role, view.up = e, kinds.index(engine.estimator), ROLE_BOTH, 1
        view.tier = POOL if engine.tier is None else engine.tier
        view.total_blocks = view.free_blocks = engine.total_blocks
        view.block_tokens = engine.block_tokens
        view.store_sets = 0 if engine.prefix_store is None else engine.prefix_store.sets(chunk_tokens)
    lists = np.zeros((len(engines), capacity), "i4")
    prefixes = Prefixes(chunk_tokens, offsets, np.zeros(0, "i4"), empty_stores(views["store_sets"]))
    return Known(views, lists, lists.copy(), fresh_tiers(np.array(tiers or (math.inf,))), prefixes)


def wider(lists: np.ndarray) -> np.ndarray:
    """Twice as long, zeros at the end."""
    return np.concatenate([lists, np.zeros_like(lists)], axis=1)


def drop(items: Any, length: int, r: int) -> None:
    """Take r out of the first so many items, keeping the order of the others."""
    place = int(np.flatnonzero(items[:length] == r)[0])
    items[place : length - 1] = items[place + 1 : length]

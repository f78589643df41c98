"""Random batches to compose and to fit: decodes only, prefills only, and both, in equal parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servegym.simulator.records.types import BATCH


@dataclass(frozen=True)
class BatchRange:
    """The range of random batches; lengths and counts are log-uniform, from 1 unless given."""

    batch_tokens: int = 16384  # most prefill tokens of a batch without decodes; half as many in a mixed batch
    prefill_requests: int = 8
    decode_requests: int = 512
    cached_tokens: int = 16384  # of one request
    cached_tokens_in_batch: int = 440_000  # of all decodes together: about what 80 GB hold of an 8B model


def random_batches(count: int, seed: int, limits: BatchRange = BatchRange()) -> np.ndarray:
    """A BATCH array[count], the regimes in turn."""
    random = np.random.default_rng(seed)
    batches = np.zeros(count, dtype=BATCH)
    for index in range(count):
        kind = index % 3
        if kind != 1:
            _add_decodes(batches[index], random, limits)
        if kind != 0:
            _add_prefills(batches[index], random, limits, limits.batch_tokens // kind)
    return batches


def _log_uniform(random: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(random.uniform(np.log(low), np.log(high + 1))))


def _add_decodes(batch, random: np.random.Generator, limits: BatchRange) -> None:
    requests = _log_uniform(random, 1, limits.decode_requests)
    middle = _log_uniform(random, 16, limits.cached_tokens)
    cached = middle * np.exp(random.normal(0.0, 0.5, requests))
    cached = cached.clip(1, limits.cached_tokens)
    cached = np.ceil(cached * min(1.0, limits.cached_tokens_in_batch / cached.sum()))
    batch.decode_requests = requests
    batch.decode_cached_tokens = cached.sum()
    batch.longest_decode_cached = cached.max()


def _add_prefills(batch, random: np.random.Generator, limits: BatchRange, most_tokens: int) -> None:
    """Divide the batch's tokens among chunks at random; every second request has tokens cached before its chunk."""
    requests = int(random.integers(1, limits.prefill_requests + 1))
    total = max(_log_uniform(random, 1, most_tokens), requests)
    shares = random.dirichlet(np.ones(requests))
    chunks = 1 + np.floor(shares * (total - requests))
    cached = np.array([_log_uniform(random, 16, limits.cached_tokens) for _ in range(requests)], dtype=float)
    cached *= random.random(requests) < 0.5
    batch.prefill_requests = requests
    batch.prefill_tokens = chunks.sum()
    batch.prefill_tokens_squared = (chunks**2).sum()
    batch.prefill_tokens_cached = (chunks * cached).sum()
    batch.prefill_cached_tokens = cached.sum()
    batch.longest_prefill_tokens = chunks.max()

"""Latency models with speculative decoding: the model without drafts, plus the time of drafts ("Time" of
docs/feature_rules.md).

The functions here are templates in which `base_...` stand for the functions of the model. Its coefficients come after
those of speculation (speculation.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from servegym.simulator.compilation.kernels import Compiled, kernel, specialised
from servegym.simulator.features.speculation import ACCEPTANCE, DRAFT_S, DRAFT_S_PER_REQUEST, START, VERIFIED, K
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.records.requests import cached_of, is_decoding
from servegym.simulator.records.signatures import latency, queue_latency, request_latency


class Sums(NamedTuple):
    """The sums of a batch that latency models read, as types.BATCH."""

    prefill_requests: float
    prefill_tokens: float
    prefill_tokens_squared: float
    prefill_tokens_cached: float
    prefill_cached_tokens: float
    longest_prefill_tokens: float
    decode_requests: float
    decode_cached_tokens: float
    longest_decode_cached: float


class Drafts(NamedTuple):
    """The drafts of a batch, as types.DRAFTS."""

    requests: float
    tokens: float
    tokens_squared: float
    tokens_cached: float
    longest: float


@latency
def base_batch_s(batch, coefficients):
    """Stand for the model's time of a batch."""
    return 0.0


@request_latency
def base_request_s(tokens, cached, decoding, coefficients):
    """Stand for the model's time of a request."""
    return 0.0


@queue_latency
def base_exec_s(requests, queue, coefficients, ranks):
    """Stand for the model's times of queued requests' remaining tokens."""


@kernel
def drafts_of(batch, k):
    """Return the drafts in a batch: as counted, or k for each decode if they were not counted."""
    if batch.drafts.known != 0.0:
        known = batch.drafts
        return Drafts(known.requests, known.tokens, known.tokens_squared, known.tokens_cached, known.longest)
    n = batch.decode_requests
    return Drafts(n, k * n, k * k * n, k * (batch.decode_cached_tokens + n), k if n > 0.0 else 0.0)


@kernel
def with_drafts(batch, drafts, verified):
    """Return the sums of the batch with drafts as prefill chunks (verified 1), or without drafts (verified 0).

    The cached tokens of the chunks are not added, as the decodes read the same context.
    """
    return Sums(
        batch.prefill_requests + verified * drafts.requests,
        batch.prefill_tokens + verified * drafts.tokens,
        batch.prefill_tokens_squared + verified * drafts.tokens_squared,
        batch.prefill_tokens_cached + verified * drafts.tokens_cached,
        batch.prefill_cached_tokens,
        max(batch.longest_prefill_tokens, verified * drafts.longest),
        batch.decode_requests,
        batch.decode_cached_tokens,
        batch.longest_decode_cached,
    )


@kernel
def decode_alone(cached, drafts):
    """Return the sums of a batch of one decode with `drafts` drafts."""
    requests = 1.0 if drafts > 0.0 else 0.0
    return Sums(requests, drafts, drafts * drafts, drafts * (cached + 1.0), 0.0, drafts, 1.0, cached, cached)


@latency
def batch_s(batch, coefficients):
    drafts = drafts_of(batch, coefficients[K])
    seconds = base_batch_s(with_drafts(batch, drafts, coefficients[VERIFIED]), coefficients[int(coefficients[START]) :])
    return seconds + drafts.longest * coefficients[DRAFT_S] + drafts.tokens * coefficients[DRAFT_S_PER_REQUEST]


@request_latency
def request_s(tokens, cached, decoding, coefficients):
    own = coefficients[int(coefficients[START]) :]
    seconds = base_request_s(tokens, cached, decoding, own)
    if decoding:
        k = coefficients[K]
        beside = decode_alone(float(cached), coefficients[VERIFIED] * k)
        seconds += base_batch_s(beside, own) - base_batch_s(decode_alone(float(cached), 0.0), own)
        seconds += k * (coefficients[DRAFT_S] + coefficients[DRAFT_S_PER_REQUEST])
    return seconds


@queue_latency
def exec_s(requests, queue, coefficients, ranks):
    own, k = coefficients[int(coefficients[START]) :], coefficients[K]
    base_exec_s(requests, queue, own, ranks)
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        if is_decoding(request):
            cached = float(cached_of(request))
            beside = decode_alone(cached, coefficients[VERIFIED] * k)
            seconds = base_batch_s(beside, own) - base_batch_s(decode_alone(cached, 0.0), own)
            ranks[position].exec_s += seconds + k * (coefficients[DRAFT_S] + coefficients[DRAFT_S_PER_REQUEST])


@dataclasses.dataclass(frozen=True, eq=False)
class SpeculatingModel:
    """A latency model of an engine that speculates. head: float64[...], the coefficients of speculation."""

    model: Any  # LatencyModel or EstimatorModel (deployment.py)
    head: np.ndarray

    @property
    def batch_s(self) -> Compiled:
        return specialised(batch_s, base_batch_s=self.model.batch_s)

    @property
    def request_s(self) -> Compiled:
        return specialised(request_s, base_request_s=self.model.request_s, base_batch_s=self.model.batch_s)

    @property
    def exec_s(self) -> Compiled:
        return specialised(exec_s, base_exec_s=self.model.exec_s, base_batch_s=self.model.batch_s)

    @property
    def coefficients(self) -> np.ndarray:
        return np.concatenate([self.head, self.model.coefficients])

    @property
    def scaled(self) -> np.ndarray:
        """bool[coefficients]: those that online correction multiplies, the model's own and the drafts' times."""
        head = np.zeros(len(self.head), bool)
        head[[DRAFT_S, DRAFT_S_PER_REQUEST]] = True
        return np.concatenate([head, self.model.scaled])


def speculating_pool(pool: Deployment) -> Deployment:
    """Return the pool with models that count its drafts; without speculation, the pool itself."""
    one = pool.speculation
    if one is None:
        return pool
    device = np.zeros(ACCEPTANCE + int(one.k))
    device[[START, K, DRAFT_S, DRAFT_S_PER_REQUEST, VERIFIED]] = (
        len(device), one.k, one.draft_s, one.draft_s_per_request, not one.free_verification,
    )  # fmt: skip
    device[ACCEPTANCE:] = one.by_position
    estimator = device[:ACCEPTANCE].copy()  # no policy knows the acceptance
    estimator[START] = ACCEPTANCE
    return dataclasses.replace(
        pool, device=SpeculatingModel(pool.device, device), estimator=SpeculatingModel(pool.estimator, estimator)
    )


def speculating(cluster: Cluster) -> Cluster:
    """Return the cluster with pools by `speculating_pool`."""
    if all(pool.speculation is None for pool in cluster.pools):
        return cluster
    return dataclasses.replace(cluster, pools=tuple(map(speculating_pool, cluster.pools)))

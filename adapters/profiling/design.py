"""Designs the batches to measure: a few that cover the space of batches that an engine may form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from servegym.errors import ProfilingError
from servegym.simulator.records.types import BATCH, BATCH_SUMS

REGIMES = ("decode", "prefill", "mixed")
MOST_PREFILLS = 4
SHORTEST_CONTEXT = 16
KV_SHARE = 0.8  # largest share of the KV memory that a designed batch takes


@dataclasses.dataclass(frozen=True)
class Space:
    """The limits of an engine's batches.

    batch_tokens: most tokens computed in a batch. sequences: most requests. context_tokens: most tokens of a request,
    prompt and output. kv_tokens: most tokens of all requests together. Raises ProfilingError for a space without a
    batch.
    """

    batch_tokens: int = 2048
    sequences: int = 64
    context_tokens: int = 4096
    kv_tokens: int = 131072

    def __post_init__(self) -> None:
        for name, least in (("batch_tokens", 2), ("sequences", 1), ("context_tokens", 64), ("kv_tokens", 128)):
            if getattr(self, name) < least:
                raise ProfilingError(f"{name} is {getattr(self, name)}; batches to measure need {least} or more")


@dataclasses.dataclass(frozen=True)
class Prefill:
    """A prompt or a chunk of one: the tokens that it computes, and the tokens cached before them."""

    tokens: int
    cached: int = 0


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch. decodes: for each decode, the tokens cached before the one that it computes."""

    prefills: tuple[Prefill, ...] = ()
    decodes: tuple[int, ...] = ()

    def sums(self) -> np.ndarray:
        """Sum the batch to a BATCH record (simulator/records/types.py), array[1]."""
        batch = np.zeros(1, BATCH)
        for name, value in (
            ("prefill_requests", len(self.prefills)),
            ("prefill_tokens", sum(each.tokens for each in self.prefills)),
            ("prefill_tokens_squared", sum(each.tokens**2 for each in self.prefills)),
            ("prefill_tokens_cached", sum(each.tokens * each.cached for each in self.prefills)),
            ("prefill_cached_tokens", sum(each.cached for each in self.prefills)),
            ("longest_prefill_tokens", max((each.tokens for each in self.prefills), default=0)),
            ("decode_requests", len(self.decodes)),
            ("decode_cached_tokens", sum(self.decodes)),
            ("longest_decode_cached", max(self.decodes, default=0)),
        ):
            batch[name] = value
        return batch


def mean_sums(batches: Sequence[Batch]) -> np.ndarray:
    """Compute the means of the sums of batches, a BATCH record, array[1]."""
    each_sums = np.concatenate([batch.sums() for batch in batches])
    mean = np.zeros(1, BATCH)
    for name in BATCH_SUMS:
        mean[name] = each_sums[name].mean()
    return mean


def design(space: Space, count: int, seed: int = 0) -> list[Batch]:
    """Design `count` batches, in turn of decodes only, of prefills only, and of both.

    Numbers of requests, tokens and cached tokens are spread over their logarithms by scrambled Halton sequences, so any
    first part of the list covers the space too. Each regime has its own sequence, as every third point of one sequence
    has the same leading digit to base 3 and lies in the same third of a dimension. A batch has at most four prefills,
    of which the first may continue a prompt; the contexts of its decodes are evenly spaced from half to one and a half
    times their mean. Raises ProfilingError for a count below 1.
    """
    from scipy.stats import qmc

    if count < 1:
        raise ProfilingError(f"{count} batches; it should be 1 or more")
    seeds = np.random.SeedSequence(seed).spawn(len(REGIMES))
    points = [qmc.Halton(d=5, seed=np.random.default_rng(each)).random(-(-count // len(REGIMES))) for each in seeds]
    turns = [divmod(index, len(REGIMES)) for index in range(count)]
    return [_batch(space, REGIMES[regime], points[regime][turn]) for turn, regime in turns]


def _batch(space: Space, regime: str, point: np.ndarray) -> Batch:
    many, long, tokens, prefills, cached = point
    decodes: tuple[int, ...] = ()
    most_decodes = min(space.sequences, space.batch_tokens, int(KV_SHARE * space.kv_tokens) // (2 * SHORTEST_CONTEXT))
    if regime == "mixed":
        most_decodes = min(most_decodes, space.sequences - 1, space.batch_tokens // 2)
    if regime != "prefill" and most_decodes > 0:
        decodes = _decodes(space, _between(1, most_decodes, many), long)
        if regime == "decode":
            return Batch(decodes=decodes)
    room = int(KV_SHARE * space.kv_tokens) - sum(decodes)
    in_all = _between(1, min(space.batch_tokens - len(decodes), space.context_tokens - 1, room), tokens)
    requests = min(1 + int(prefills * MOST_PREFILLS), in_all, space.sequences - len(decodes))
    shares = [in_all // requests + (place < in_all % requests) for place in range(requests)]
    most_cached = min(space.context_tokens - 1 - shares[0], room - in_all)
    # Half of the batches continue a prompt.
    before = _between(SHORTEST_CONTEXT, most_cached, 2 * cached - 1) if cached > 0.5 and most_cached > 0 else 0
    return Batch((Prefill(shares[0], before), *(Prefill(share) for share in shares[1:])), decodes)


def _decodes(space: Space, count: int, long: float) -> tuple[int, ...]:
    """Return the contexts of `count` decodes, evenly spaced from half to one and a half times their mean."""
    most = min((space.context_tokens - 64) / 1.5, KV_SHARE * space.kv_tokens / count / 1.5)
    mean = _between(SHORTEST_CONTEXT, int(most), long)
    spread = np.linspace(0.5, 1.5, count) if count > 1 else np.ones(1)
    return tuple(max(1, int(mean * share)) for share in spread)


def _between(low: int, high: int, share: float) -> int:
    """Map a share of 0 to 1 to a whole number from low to high, evenly over logarithms; `high` if high < low."""
    if high <= low:
        return max(1, high)
    return min(high, round(math.exp(math.log(low) + share * (math.log(high + 0.5) - math.log(low)))))

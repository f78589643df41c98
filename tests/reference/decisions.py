"""A scheduler's decisions about a batch, and the interface to it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from .engines import Engine
from .latency import Latency
from .requests import INF, Request

Rank = tuple[float, ...]
LEFT_OUT = INF  # first entry of a rank, its tier: the request does not run, but would after all others


@dataclass
class Limits:
    """The limits of a batch with their defaults; an infinite one is no limit."""

    max_num_batched_tokens: float = INF
    time_budget_s: float = INF
    sequence_budget: float = INF
    max_num_seqs: float = INF
    chunk_tokens: float = INF
    smallest_chunk_tokens: int = 1
    whole_prompts: bool = False
    first_decides: bool = False  # FIRST_DECIDES, else mixed phases
    misfit_ends_filling: bool = False  # else what does not fit is passed over
    reserve_context: bool = True
    evict_for: str = "decodes"  # EVICT_FOR_DECODES, EVICT_FOR_RUNNING or EVICT_FOR_ALL: decodes, running, all
    untimed_decodes: bool = False
    untimed_prefill_tokens: int = 0
    step_tokens: int = 0
    most_drafts: float = INF
    watermark_blocks: int | None = None  # None: the engine's
    preemptible: str | None = None  # at the ends of "operators" or of "layers"; None: not
    slice_s: float = INF


@dataclass
class Decision:
    """A scheduler's decision, one entry for each place in the queue."""

    ranks: list[Rank]
    limits: Limits
    victim_ranks: list[Rank] | Callable[[], list[Rank]] | None = None  # None: the ranks; when first asked for
    keep_tokens: list[int] | None = None  # None: a victim keeps nothing
    headroom_blocks: list[int] | None = None  # None: 0 for all

    def first_of(self, queue: list[Request], whom: Callable[[Request], bool] = lambda r: True) -> Request:
        """Return the first-ranked of some of the queue; of those left out, if all are."""
        return min((pair for pair in zip(self.ranks, queue, strict=True) if whom(pair[1])), key=lambda pair: pair[0])[1]


class Scheduler(Protocol):
    """The interface of the classes in schedulers/."""

    estimator: Latency

    def prepare(self, requests: list[Request], estimator: Latency) -> None: ...
    def decide(self, engine: Engine, now_s: float) -> Decision: ...
    def forget(self, r: Request) -> None: ...


@dataclass
class Counts:
    """Counters of the whole run."""

    admissions: int = 0
    evictions: int = 0


def within(engine: Engine, limits: Limits) -> Limits:
    """Reduce the limits to the engine's own, which a scheduler cannot exceed."""
    return replace(
        limits,
        max_num_batched_tokens=min(limits.max_num_batched_tokens, engine.most_batch_tokens),
        max_num_seqs=min(limits.max_num_seqs, engine.most_sequences),
    )

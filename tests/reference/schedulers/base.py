"""The base class of the reference schedulers, and a scheduler of any rank."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ..decisions import Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency
from ..requests import Request


class Scheduler:
    """The base class. Further keywords (`chunk_tokens=512`, `reserve_context=False`) replace its limits."""

    def __init__(self, **limits: Any) -> None:
        self.overrides = limits

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        """Prepare for a run with the whole workload, for defaults, and the estimator shared with the packer."""
        self.requests, self.estimator = requests, estimator

    def decide(self, engine: Engine, now_s: float) -> Decision:
        """Decide, given the engine, its memories and its statistics at `now_s`. A scheduler may keep a memory."""
        self.engine = engine
        queue = engine.queue
        limits = dataclasses.replace(self.limits(queue, now_s), **self.overrides)
        return Decision(
            ranks=self.ranks(queue, now_s), limits=limits, victim_ranks=self.victim_ranks(queue),
            keep_tokens=self.keep_tokens(queue), headroom_blocks=self.headroom_blocks(queue),
        )  # fmt: skip

    def forget(self, r: Request) -> None:
        """Forget a request that has left."""

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        return [self.rank(r, now_s) for r in queue]

    def rank(self, r: Request, now_s: float) -> Rank:
        raise NotImplementedError

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits()

    def victim_ranks(self, queue: list[Request]) -> list[Rank] | None:
        return None

    def keep_tokens(self, queue: list[Request]) -> list[int] | None:
        return None

    def headroom_blocks(self, queue: list[Request]) -> list[int] | None:
        return None

    def exec(self, r: Request) -> float:
        return self.estimator.exec(*r.shape(r.left))


class Custom(Scheduler):
    """A scheduler of any rank, victim rank, tokens to keep and headroom, for tests of the packer."""

    def __init__(
        self,
        rank: Callable[[Request, float], Rank],
        victim_rank: Callable[[Request], Rank] | None = None,
        keep: int | None = None,
        headroom: int | None = None,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.rank = rank  # type: ignore[method-assign, assignment]
        self.victim_rank, self.keep, self.headroom = victim_rank, keep, headroom

    def victim_ranks(self, queue: list[Request]) -> list[Rank] | None:
        return None if self.victim_rank is None else [self.victim_rank(r) for r in queue]

    def keep_tokens(self, queue: list[Request]) -> list[int] | None:
        return None if self.keep is None else [self.keep] * len(queue)

    def headroom_blocks(self, queue: list[Request]) -> list[int] | None:
        return None if self.headroom is None else [self.headroom] * len(queue)

"""docs/systems/smartspec.md."""

from typing import Any

from ..decisions import Limits, Rank
from ..requests import Request
from ..speculation import Expecting
from .sarathi import SarathiFcfs


class FixedDrafts(SarathiFcfs):
    def __init__(self, most_drafts: int = 4, **others: Any) -> None:
        super().__init__(**others)
        self.most_drafts = most_drafts

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        limits = super().limits(queue, now_s)
        limits.most_drafts = self.most_drafts
        return limits


class SmartSpec(SarathiFcfs):
    def __init__(self, acceptance: float = 0.7, memory: float = 256, **others: Any) -> None:
        super().__init__(**others)
        self.acceptance, self.memory = acceptance, memory
        self.noted: dict[int, list[float]] = {}  # by engine: drafted, accepted, drafts each, acceptance

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0 if r.decoding else 1, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        limits, engine = super().limits(queue, now_s), self.engine
        if engine.speculation.k == 0:
            return limits
        noted = self.noted.setdefault(engine.index, [0, 0, 0, self.acceptance])
        drafted, accepted = engine.drafted_tokens - noted[0], engine.accepted_tokens - noted[1]
        if drafted > 0 and noted[2] > 0:
            tries = drafted / noted[2]
            noted[3] += tries / (tries + self.memory) * (solved(accepted / tries, int(noted[2])) - noted[3])
        decodes = [r for r in queue if r.decoding and r.running]
        limits.most_drafts = (
            max(range(engine.speculation.k + 1), key=lambda k: self.tokens_per_s(decodes, k, noted[3]))
            if decodes
            else 0
        )
        noted[:3] = engine.drafted_tokens, engine.accepted_tokens, limits.most_drafts
        return limits

    def tokens_per_s(self, decodes: list[Request], k: int, acceptance: float) -> float:
        estimator = self.estimator.model if isinstance(self.estimator, Expecting) else self.estimator
        shapes = [r.shape(1) for r in decodes]
        return expected(acceptance, k) / estimator.batch([(1 + k, cached, True) for _, cached, _ in shapes])


def expected(acceptance: float, k: int) -> float:
    return sum(acceptance**i for i in range(k + 1))


def solved(mean_accepted: float, k: int) -> float:
    """Return the acceptance rate, 0 to 1, with which this mean number of k drafts is accepted."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle, k) - 1 < mean_accepted else (low, middle)
    return (low + high) / 2

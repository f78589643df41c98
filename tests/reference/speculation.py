"""Speculative decoding, from docs/feature_rules.md."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from servegym.simulator.records.random import uniform

from .disturbances import Scaled
from .latency import Latency, Shape

if TYPE_CHECKING:
    from .requests import Request

STREAM = 0x64726166


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding of an engine. k: drafts; 0: none."""

    k: int = 0
    acceptance: tuple[float, ...] = ()  # of each position
    draft_s: float = 0.0
    draft_s_per_request: float = 0.0
    free_verification: bool = False
    seed: int = 0

    def drafts_of(self, r: "Request") -> int:
        """D"""
        return min(self.k, r.output_tokens - r.emitted - 1)

    def counted(self, tokens: int, decoding: bool) -> int:
        """Return the tokens of a chunk that count in budgets."""
        return 1 if decoding and self.free_verification else tokens

    def accepted(self, r: "Request", drafts: int) -> int:
        for i in range(1, drafts + 1):
            if not uniform(self.seed ^ STREAM, r.index, r.emitted + i) < self.acceptance[i - 1]:
                return i - 1
        return drafts


@dataclass(frozen=True)
class Speculating:
    """A latency model of batches whose decodes have drafts: c tokens are c - 1 drafts."""

    model: Latency
    speculation: Speculation

    def batch(self, shapes: list[Shape]) -> float:
        one, plain, drafts = self.speculation, [], []
        for tokens, cached, decoding in shapes:
            plain.append((1 if decoding else tokens, cached, decoding))
            if decoding and tokens > 1:
                drafts.append(tokens - 1)
                if not one.free_verification:
                    plain.append((tokens - 1, cached + 1, False))
        return self.model.batch(plain) + max(drafts, default=0) * one.draft_s + sum(drafts) * one.draft_s_per_request

    def exec(self, tokens: int, cached: float, decoding: bool) -> float:
        one = self.speculation
        seconds = self.model.exec(1 if decoding else tokens, cached, decoding)
        if decoding and one.k > 0:
            with_drafts, without = (self.batch([(c, cached, True)]) for c in (1 + one.k, 1))
            seconds += with_drafts - without
        return seconds


@dataclass(frozen=True)
class Expecting:
    """The estimator for policies: each decode has the most drafts that it may have."""

    model: Latency
    k: int

    def batch(self, shapes: list[Shape]) -> float:
        return self.model.batch([(1 + self.k if decoding else c, cached, decoding) for c, cached, decoding in shapes])

    def exec(self, tokens: int, cached: float, decoding: bool) -> float:
        return self.model.exec(tokens, cached, decoding)


def expecting(estimator: Latency) -> Latency:
    fit = estimator.fit if isinstance(estimator, Scaled) else estimator
    return Expecting(estimator, fit.speculation.k) if isinstance(fit, Speculating) else estimator

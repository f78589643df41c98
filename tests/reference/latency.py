"""Times of batches: device models and estimators of the reference simulator.

A batch is a list of (tokens, cached, decoding), one for each of its requests: tokens computed in this batch,
tokens computed before (whose KV is held), and whether the request decodes. `exec` is one request's time
without the constant part; `batch` is a whole batch's with it, and an empty batch costs just that part.
"""

from dataclasses import dataclass
from typing import Protocol

Shape = tuple[int, float, bool]  # tokens, cached, decoding


class Latency(Protocol):
    """The interface of a device model or an estimator."""

    def batch(self, shapes: list[Shape]) -> float: ...
    def exec(self, tokens: int, cached: float, decoding: bool) -> float: ...


@dataclass(frozen=True)
class Linear:
    """ProServe, Eq. 4-7."""

    a_p: float  # prefill: s per lq^2
    b_p: float  # prefill: s per lq x lkv
    c_p: float  # prefill: s per lq
    a_d: float  # decode: s per lkv
    b_d: float  # decode: s
    t_c: float  # batch: s

    def exec(self, tokens: int, cached: float, decoding: bool) -> float:
        if decoding:  # Eq. 6
            return self.a_d * cached + self.b_d
        return self.a_p * tokens * tokens + self.b_p * tokens * cached + self.c_p * tokens  # Eq. 5

    def batch(self, shapes: list[Shape]) -> float:
        total_s = self.t_c
        for shape in shapes:  # Eq. 7
            total_s += self.exec(*shape)
        return total_s


@dataclass(frozen=True)
class Piecewise:
    """A curve over the tokens of the batch, linear attention, and a constant for each kind present."""

    knots_tokens: tuple[float, ...]  # rising
    base_s: tuple[float, ...]  # the curve's values there
    a_p: float = 0.0  # prefill: s per lq^2
    b_p: float = 0.0  # prefill: s per lq x lkv
    f_p: float = 0.0  # s, of a batch with a prefill
    a_d: float = 0.0  # decode: s per lkv
    f_d: float = 0.0  # s, of a batch with a decode
    t_c: float = 0.0  # batch: s

    def base(self, tokens: float) -> float:
        """Interpolate; the value before the first knot is constant, and past the last one the last slope continues."""
        if tokens <= self.knots_tokens[0]:
            return self.base_s[0]
        left = 0  # the last knot, but one with a knot after it, that is not after `tokens`
        while left + 2 < len(self.knots_tokens) and self.knots_tokens[left + 1] <= tokens:
            left += 1
        run = self.knots_tokens[left + 1] - self.knots_tokens[left]
        slope = (self.base_s[left + 1] - self.base_s[left]) / run
        return self.base_s[left] + slope * (tokens - self.knots_tokens[left])

    def exec(self, tokens: int, cached: float, decoding: bool) -> float:
        return self.batch([(tokens, cached, decoding)]) - self.batch([])

    def batch(self, shapes: list[Shape]) -> float:
        prefills = [(tokens, cached) for tokens, cached, decoding in shapes if not decoding]
        decodes = [(tokens, cached) for tokens, cached, decoding in shapes if decoding]
        total_s = self.t_c + self.base(sum(tokens for tokens, _ in prefills + decodes))
        if prefills:
            total_s += self.a_p * sum(tokens**2 for tokens, _ in prefills)
            total_s += self.b_p * sum(tokens * cached for tokens, cached in prefills)
            total_s += self.f_p
        if decodes:
            total_s += self.a_d * sum(cached for _, cached in decodes) + self.f_d
        return total_s

"""docs/systems/plas.md."""

from typing import Any

from ..decisions import Rank
from ..requests import Request
from .sarathi import SarathiFcfs


class Plas(SarathiFcfs):
    def __init__(self, quantum_tokens: int = 1024, promote_after_s: float = 1500.0, **limits: Any) -> None:
        super().__init__(**limits)
        self.quantum_tokens, self.promote_after_s = quantum_tokens, promote_after_s

    def level(self, r: Request, now_s: float) -> int:
        """Return the level: each holds twice the tokens of the one above it, the first up to `quantum_tokens`."""
        if now_s - r.arrival_s >= self.promote_after_s:
            return 0
        level, holds = 0, self.quantum_tokens
        while r.session_tokens >= holds:
            level, holds = level + 1, 2 * holds + self.quantum_tokens
        return level

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0, r.arrival_s) if r.decoding else (1, self.level(r, now_s))

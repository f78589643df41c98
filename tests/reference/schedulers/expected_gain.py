"""Expected gain, as docs/systems/expected_gain.md has it."""

import math
from typing import Any

from ..packer import Limits, Rank
from ..requests import Request
from .proserve import SlideBatching


class ExpectedGain(SlideBatching):
    """The budget is SlideBatching's, and what counts as urgent within it."""

    def __init__(
        self, gamma: float = 2.0, output_tokens: float = 200.0, deadlines: str = "early-first-token", **options: Any
    ) -> None:
        super().__init__(gamma=gamma, deadlines=deadlines, **options)
        self.output_tokens = output_tokens

    def in_time(self, r: Request, slack_s: float) -> float:
        """Tokens expected in time."""
        group = self.engine.by_application[r.application]
        left = group.mean_output_tokens if group.outputs else self.output_tokens
        interval_s = r.tpot_slo_s if r.interactive else 0.0
        gained_s = interval_s - self.floor_s
        until = math.exp(-abs(slack_s) / (abs(gained_s) * left)) if gained_s else 0.0  # it catches up, or is late
        if slack_s >= 0 and gained_s >= 0:
            return left if slack_s > 0 or gained_s > 0 else 0.0
        if slack_s < 0:
            return left * until if gained_s > 0 else 0.0
        return left * (1 - until)

    def gain(self, r: Request, now_s: float) -> float:
        slack_s = self.remain(r, now_s) - self.exec(r) - self.t_c
        first = r.weight_of(1) if r.emitted == 0 and slack_s >= 0 else 0.0
        return r.weight_of(2) * self.in_time(r, slack_s) + first

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        urgent = self.urgent(queue, now_s, self.t_budget(queue, now_s))
        return [
            (0, -self.gain(r, now_s) / max(self.exec(r), 1e-9)) if hurried else (1, self.remain(r, now_s))
            for r, hurried in zip(queue, urgent, strict=True)
        ]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(time_budget_s=self.t_budget(queue, now_s))

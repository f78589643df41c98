"""The objective of a training: TDG ratio, SLO attainment beside it, less what engines cost and a penalty for missed
constraints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """TDG ratio, and SLO attainment less a penalty, which an episode earns at its end.

    paired: the gain of the base policy on the same requests, up to the same time, is taken from rewards: what is left
    is what the agent's decisions changed, without what the requests happen to be worth. by_request: a decision about a
    request earns what that request gains, and whether it attains its SLOs (`credit`; of the algorithms ppo and
    maskable-ppo).
    attainment: weight of SLO attainment beside the TDG ratio: where nearly all tokens are in time, it tells more.
    cost: what an engine that is in service all the time costs, in TDG ratio (for scalers).
    attainment_floor: least share of the requests within their SLOs. wait_cap_s: most seconds to a first token, of 99
    in 100 requests. penalty: weight of the violations: floor minus attainment, and the part of the wait that is beyond
    the cap (from 0 to 1).
    """

    paired: bool = False
    by_request: bool = False
    attainment: float = 0.0
    cost: float = 0.0
    attainment_floor: float | None = None
    wait_cap_s: float | None = None
    penalty: float = 1.0

    @property
    def has_penalty(self) -> bool:
        return self.attainment_floor is not None or self.wait_cap_s is not None or self.cost > 0

    @property
    def is_gain_alone(self) -> bool:
        return self.attainment == 0 and not self.has_penalty

    def beside_gain(self, summary: Mapping[str, Any]) -> float:
        """What an episode earns beside its gain. summary: as of `penalty_of`."""
        attainment = summary["slo_attainment"]
        return self.attainment * (1.0 if math.isnan(attainment) else attainment) - self.penalty_of(summary)

    def penalty_of(self, summary: Mapping[str, Any]) -> float:
        """The penalty and the cost of an episode. summary: `slo_attainment` and `ttft_s_p99`, of which nan (none was
        served) counts as what is best, and with a cost `engines_in_service`."""
        lacking = 0.0
        if self.attainment_floor is not None and not math.isnan(summary["slo_attainment"]):
            lacking += max(0.0, self.attainment_floor - summary["slo_attainment"])
        if self.wait_cap_s is not None and summary["ttft_s_p99"] > self.wait_cap_s:
            lacking += 1.0 - self.wait_cap_s / summary["ttft_s_p99"]
        charged = self.cost * summary["engines_in_service"] if self.cost > 0 else 0.0
        return self.penalty * lacking + charged


GAIN_ALONE = Objective()

"""The objective of a training: TDG ratio, plus weighted SLO attainment, less the cost of engines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """TDG ratio by step; at the end of an episode, SLO attainment less the cost of engines.

    paired: subtract the gain of the base policy on the same requests up to the same time, which leaves the effect of
    the agent's decisions. by_request: reward a decision about a request with the gain of that request and its SLO
    attainment (for the algorithms ppo and maskable-ppo).

    attainment: weight of SLO attainment, which distinguishes policies better if nearly all tokens are in time.
    cost: cost of an engine in service all the time, in TDG ratio (for scalers).
    """

    paired: bool = False
    by_request: bool = False
    attainment: float = 0.0
    cost: float = 0.0

    @property
    def is_gain_alone(self) -> bool:
        return self.attainment == 0 and self.cost == 0

    def beside_gain(self, summary: Mapping[str, Any]) -> float:
        """The reward at the end of an episode, beside its gain. summary: `slo_attainment`, in which nan (no request)
        counts as 1, and with a cost `engines_in_service`."""
        attainment = summary["slo_attainment"]
        return self.attainment * (1.0 if math.isnan(attainment) else attainment) - self.cost_of(summary)

    def cost_of(self, summary: Mapping[str, Any]) -> float:
        """The cost of an episode's engines, in TDG ratio."""
        return self.cost * summary["engines_in_service"] if self.cost > 0 else 0.0


GAIN_ALONE = Objective()

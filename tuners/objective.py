"""The objective of a training: TDG ratio, SLO attainment beside it, less what engines cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """TDG ratio, and SLO attainment less the cost of engines, which an episode earns at its end.

    paired: the gain of the base policy on the same requests, up to the same time, is taken from rewards: what is left
    is what the agent's decisions changed, without what the requests happen to be worth. by_request: a decision about a
    request earns what that request gains, and whether it attains its SLOs (`credit`; of the algorithms ppo and
    maskable-ppo).
    attainment: weight of SLO attainment beside the TDG ratio: where nearly all tokens are in time, it tells more.
    cost: what an engine that is in service all the time costs, in TDG ratio (for scalers).
    """

    paired: bool = False
    by_request: bool = False
    attainment: float = 0.0
    cost: float = 0.0

    @property
    def is_gain_alone(self) -> bool:
        return self.attainment == 0 and self.cost == 0

    def beside_gain(self, summary: Mapping[str, Any]) -> float:
        """What an episode earns beside its gain. summary: `slo_attainment`, of which nan (none was served) counts as 1,
        and with a cost `engines_in_service`."""
        attainment = summary["slo_attainment"]
        return self.attainment * (1.0 if math.isnan(attainment) else attainment) - self.cost_of(summary)

    def cost_of(self, summary: Mapping[str, Any]) -> float:
        """What the engines of an episode cost, in TDG ratio."""
        return self.cost * summary["engines_in_service"] if self.cost > 0 else 0.0


GAIN_ALONE = Objective()

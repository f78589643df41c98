"""Costs of engines, in money and energy. An unknown cost is None and left out of results."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servegym.errors import DeploymentError

S_PER_HOUR, J_PER_KWH, TOKENS = 3600.0, 3.6e6, 1e6


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs of an engine; None: not known. Raises DeploymentError for a number below 0.

    price_per_hour: of an engine in service, in any currency. idle_w, busy_w: its power in service, without an iteration
    and with one. most_w: power that it never exceeds.
    """

    price_per_hour: float | None = None
    idle_w: float | None = None
    busy_w: float | None = None
    most_w: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise DeploymentError(f"costs: {name} is {value}; it should be 0 or more, and finite")
        if self.idle_w is not None and self.busy_w is not None and self.idle_w > self.busy_w:
            raise DeploymentError(f"costs: idle_w is {self.idle_w:g}; it should be at most busy_w, {self.busy_w:g}")

    def over(self, other: Costs) -> Costs:
        """Return these costs, with unknown ones taken from `other`."""
        mine = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(other, **mine)

    def of_engines(self, service_s: np.ndarray, busy_s: np.ndarray) -> dict[str, float]:
        """Return the known costs of engines by name. service_s, busy_s: float64[engines], time in service and busy."""
        known = {}
        in_service_s = math.fsum(service_s)
        if self.price_per_hour is not None:
            known["cost"] = self.price_per_hour * in_service_s / S_PER_HOUR
        if self.idle_w is not None and self.busy_w is not None:
            idle_s = math.fsum(np.maximum(service_s - busy_s, 0.0))
            known["energy_kwh"] = (self.busy_w * math.fsum(busy_s) + self.idle_w * idle_s) / J_PER_KWH
        if self.most_w is not None:
            known["energy_kwh_at_most"] = self.most_w * in_service_s / J_PER_KWH
        return known


def costs_of_pools(
    costs: list[Costs | None], kinds: np.ndarray, service_s: np.ndarray, busy_s: np.ndarray, tokens: int
) -> dict[str, float | None]:
    """Return the costs that are known of all pools, in all and per million tokens (None: no tokens).

    kinds: int64[engines], the pool of each. tokens: number of output tokens.
    """
    parts = [
        one.of_engines(service_s[kinds == kind], busy_s[kinds == kind]) if one is not None else {}
        for kind, one in enumerate(costs)
    ]
    known: dict[str, float | None] = {}
    for name in parts[0]:
        if all(name in part for part in parts):
            total = math.fsum(part[name] for part in parts)
            known[name] = total
            known[f"{name}_per_million_tokens"] = total / tokens * TOKENS if tokens else None
    return known

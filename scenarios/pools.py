"""Pools of engines, where a fleet is not all alike."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servegym.simulator.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class Pool:
    """Equal engines. device: None: the fleet's. role: both, prefill or decode. scheduler: None: that of the policies.
    tier: of these engines at first, from 0; None: the common pool."""

    device: str | None = None
    engines: int = 1
    role: str = "both"
    scheduler: str | Policy | None = None
    tier: int | None = None

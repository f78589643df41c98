"""Self-tuning: a scheduler's parameters are chosen anew while it serves, by what it has served (tuner.py).

docs/self_tuning.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servegym.simulator.policies.parameters import Fact, Value

if TYPE_CHECKING:
    from servegym.simulator.policies.policy import Policy

Setting = Mapping[str, Value | Fact]


@dataclasses.dataclass(frozen=True)
class SelfTuning:
    """How a policy tunes itself.

    settings: what it chooses among, upon its own settings, with which it begins.
    first: so many requests have come when it chooses first; then whenever as many more have come, at most `window`.
    window: it chooses by so many at most, the last.
    attainment: a setting is worth the TDG ratio plus so many times SLO attainment.
    margin: it changes only for one that is worth more than the present one by more than this.
    """

    settings: tuple[Setting, ...]
    first: int = 100
    window: int = 1000
    attainment: float = 0.5
    margin: float = 0.003

    def after(self, count: int) -> int:
        """How many requests have come when it chooses next, after a choice at so many."""
        return count + min(count, self.window)

    def policies(self, policy: Policy) -> list[Policy]:
        """The policy as it is, and with each of the settings."""
        return [with_setting(policy, setting) for setting in ({}, *self.settings)]

    def to_json(self) -> dict[str, Any]:
        settings = [{name: str(value) for name, value in setting.items()} for setting in self.settings]
        return dataclasses.asdict(self) | {"settings": settings}


def with_setting(policy: Policy, setting: Setting) -> Policy:
    """The policy without self-tuning, and with a setting upon its own."""
    return dataclasses.replace(policy, settings={**policy.settings, **setting}, self_tuning=None)

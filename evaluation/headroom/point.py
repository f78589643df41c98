"""A point of the search: parameters of the family of rankings, and changes to single requests. It determines a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from servegym.evaluation.headroom.ranking import EARLIER, FORESIGHT, NOT_BEFORE, OF_REQUEST, TOKENS, P
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.parameters import Parameter
from servegym.simulator.policies.policy import Policy, Weights

SEARCHED = tuple(parameter for parameter in P if parameter.name != "slo_s")
DIMENSIONS = len(SEARCHED)


class Change(NamedTuple):
    """Of one request. earlier: added to the logarithm of its worth. not_before_s: served only from then on, or when
    there is nothing else to do; NEVER_S: only then."""

    earlier: float = 0.0
    not_before_s: float = 0.0


NO_CHANGE = Change()


@dataclasses.dataclass(frozen=True)
class Point:
    """family: float64[DIMENSIONS], numbers of the ranking in units of their range (on a logarithmic scale where they
    have one), 0 to 1. changes: of single requests, by their row in the workload."""

    family: np.ndarray
    changes: Mapping[int, Change] = dataclasses.field(default_factory=dict)
    no_change: ClassVar[Change] = NO_CHANGE
    kind: ClassVar[str] = "scheduler"

    @classmethod
    def of(cls, **settings: float) -> Point:
        """The defaults of the ranking, with these numbers."""
        values: dict[str, Any] = FORESIGHT.with_settings(**settings).chosen()
        return cls(np.array([to_unit(parameter, values[parameter.name]) for parameter in SEARCHED]))

    @property
    def settings(self) -> dict[str, float]:
        """The numbers of the family by name, in their own units."""
        return {
            parameter.name: from_unit(parameter, float(unit))
            for parameter, unit in zip(SEARCHED, self.family, strict=True)
        }

    def changed(self, changes: Mapping[int, Change]) -> Point:
        """The point with more changes; an empty change undoes the earlier one of its request."""
        together = {r: change for r, change in {**self.changes, **changes}.items() if change != NO_CHANGE}
        return dataclasses.replace(self, changes=together)

    def policy(self, workload: Workload) -> Policy:
        """The scheduler of this point. It knows the future of this workload, and is of no use on another."""
        numbers = np.zeros((len(workload), OF_REQUEST))
        numbers[:, TOKENS] = workload.table["output_tokens"]
        for r, change in self.changes.items():
            numbers[r, EARLIER], numbers[r, NOT_BEFORE] = change
        return dataclasses.replace(FORESIGHT, settings=self.settings, weights=Weights(numbers))

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario under the scheduler of this point."""
        return dataclasses.replace(scenario, scheduler=self.policy(scenario.workload))

    def to_json(self) -> dict[str, Any]:
        return {
            "family": [float(unit) for unit in self.family],
            "changes": {str(r): list(change) for r, change in self.changes.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Point:
        changes = {int(r): Change(*change) for r, change in document["changes"].items()}
        return cls(np.array(document["family"], "f8"), changes)


def to_unit(parameter: Parameter, value: float) -> float:
    """Convert a value of a parameter to units of its range."""
    low, high, at = parameter.low, parameter.high, value
    if parameter.log:
        low, high, at = math.log(low), math.log(high), math.log(value)
    return (at - low) / (high - low)


def from_unit(parameter: Parameter, unit: float) -> float:
    """Convert units of a parameter's range to a value within its bounds."""
    low, high = parameter.low, parameter.high
    if parameter.log:
        value = math.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
    else:
        value = low + unit * (high - low)
    value = min(max(value, low), high)
    return round(value) if parameter.integer else value

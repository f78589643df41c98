"""A search space, read off the parameters that policies declare.

A policy has a role: "scheduler", "decode_scheduler" (of the decode engines), "router" or "scaler". A variable is what a
sampler draws: one parameter of one policy, or the same quantity in several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from servegym.errors import SearchError
from servegym.simulator.policies.policy import Policy, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

ROLES = ("scheduler", "decode_scheduler", "router", "scaler")
LARGEST_SHARE = 0.999  # of the upper parameter, that the lower one may be: below means below
DIGITS = 4  # significant ones of a drawn number: what a person would write, and far finer than what matters

Settings = dict[str, dict[str, Value]]  # by role and parameter
Fact = Callable[[str], float]


@dataclasses.dataclass(frozen=True)
class Variable:
    """What a sampler draws.

    members: (role, parameter) that get its value. low, high, log, integer, choices: as those of `Parameter`.
    share_of: a parameter whose value is above this one's (see `baselines.relations`). The variable is then not the
        value itself, but how far the value lies between its low and the smaller of its high and that parameter's value;
        `parameter_low` and `parameter_high` are the bounds of the value itself.
    """

    name: str
    members: tuple[tuple[str, str], ...]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[str, ...] = ()
    unit: str = ""
    source: str = ""
    share_of: str | None = None
    parameter_low: float = 0.0
    parameter_high: float = 0.0

    @property
    def role(self) -> str:
        return self.members[0][0]

    @property
    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def suggest(self, trial: Any) -> Value:
        """Draw a value with an Optuna trial."""
        drawn: Value
        if self.choices:
            drawn = trial.suggest_categorical(self.name, self.choices)
        elif self.integer:
            drawn = trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        else:
            drawn = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return drawn

    def levels(self, count: int) -> list[Value]:
        """`count` values over the range, evenly spaced on its scale, without repeated whole numbers; or all choices."""
        if self.choices:
            return list(self.choices)
        if count == 1:
            values = [self._at(0.5)]
        else:
            values = [self._at(i / (count - 1)) for i in range(count)]
        return list(dict.fromkeys(values))

    def check_has(self, value: Value) -> None:
        """Raise SearchError for a default outside of the searched range."""
        if value in self.choices if self.choices else self.low <= float(value) <= self.high:
            return
        searched = ", ".join(self.choices) or f"{self.low:g} to {self.high:g}"
        written = value if isinstance(value, str) else f"{value:g}"
        raise SearchError(
            f"{self.name}: its default {written} is outside of the searched range, {searched}; a search begins with "
            "the defaults, so its range should include them"
        )

    def _at(self, share: float) -> float | int:
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else value


@dataclasses.dataclass(frozen=True)
class Space:
    """The variables of a search, and the policies whose parameters they are, by role."""

    policies: Mapping[str, Policy]
    variables: tuple[Variable, ...]

    @property
    def names(self) -> list[str]:
        return [variable.name for variable in self.variables]

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return {variable.name: variable.distribution for variable in self.variables}

    def suggest(self, trial: Any) -> dict[str, Value]:
        """Draw a value of each variable with an Optuna trial."""
        return {variable.name: variable.suggest(trial) for variable in self.variables}

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """Turn a value of each variable into the settings of each policy.

        Drawn numbers are rounded to `DIGITS` significant digits, so that reports show them exactly.
        """
        settings: Settings = {role: {} for role in self.policies}
        for variable in sorted(self.variables, key=lambda variable: variable.share_of is not None):
            value = values[variable.name]
            if variable.share_of is not None:
                upper = float(settings[variable.role][variable.share_of])
                low = variable.parameter_low
                value = low + value * (min(variable.parameter_high, upper) - low)
            if not variable.choices:
                value = int(value) if variable.integer else self._rounded(variable, float(value))
            for role, parameter in variable.members:
                settings[role][parameter] = value
        return settings

    def _rounded(self, variable: Variable, value: float) -> float:
        low, high = variable.low, variable.high
        if variable.share_of is not None:
            low, high = variable.parameter_low, variable.parameter_high
        return min(max(float(f"{value:.{DIGITS}g}"), low), high)

    def changed(self, settings: Settings, variable: Variable, value: Value) -> Settings:
        """Settings with one variable at another value; a parameter that it bounds keeps its share of the range."""
        values: dict[str, Value] = {}
        for other in self.variables:
            role, parameter = other.members[0]
            own = settings[role][parameter]
            if other.share_of is not None:
                own = self._share(other, float(own), float(settings[role][other.share_of]))
            values[other.name] = own
        return self.settings({**values, variable.name: value})

    def policies_with(self, settings: Settings) -> dict[str, Policy]:
        """Give the policies these settings; returns them by role."""
        return {role: policy.with_settings(**settings.get(role, {})) for role, policy in self.policies.items()}

    def defaults(self, fact_of: Mapping[str, Fact]) -> dict[str, Value]:
        """Return the policies' defaults by variable, with which a search begins.

        fact_of: by role, the function for facts on which defaults depend. Raises SearchError for a default outside the
        range of its variable, as the search could not reach the point with which it begins and is compared.
        """
        for variable in self.variables:  # those that depend on nothing first: facts take a workload, and minutes
            role, parameter = variable.members[0]
            value = self.policies[role].chosen()[parameter]
            if variable.share_of is None and isinstance(value, int | float | str):
                variable.check_has(value)
        own = {role: policy.values(fact_of[role]) for role, policy in self.policies.items()}
        values: dict[str, Value] = {}
        for variable in self.variables:
            role, parameter = variable.members[0]
            value = own[role][parameter]
            if variable.share_of is not None:
                values[variable.name] = self._share(variable, float(value), float(own[role][variable.share_of]))
                continue
            variable.check_has(value)
            values[variable.name] = value
        return values

    @staticmethod
    def _share(variable: Variable, value: float, upper: float) -> float:
        reach = min(variable.parameter_high, upper) - variable.parameter_low
        share = round((value - variable.parameter_low) / reach, 9) if reach > 0 else 0.0
        if not variable.low <= share <= variable.high:
            raise SearchError(
                f"{variable.members[0][1]} is {value:g} and {variable.share_of} is {upper:g}: it should be below, and "
                f"from {variable.parameter_low:g} on"
            )
        return share

    def to_json(self) -> dict[str, Any]:
        """Return the space with JSON's types, for the identity of a study."""
        return {
            "policies": {role: policy.to_json() for role, policy in self.policies.items()},
            "variables": [dataclasses.asdict(variable) for variable in self.variables],
        }

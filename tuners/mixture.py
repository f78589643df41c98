"""Several kinds of scenarios in one training: each episode is drawn from one of several specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A source that draws each scenario from one of its specs, all equally likely."""

    specs: tuple[ServingSpec, ...]

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return self.spec(rng)(rng)

    def spec(self, rng: np.random.Generator) -> ServingSpec:
        """Draw the spec of a scenario; a single one is returned without a draw."""
        return self.specs[0 if len(self.specs) == 1 else int(rng.integers(len(self.specs)))]

    def with_overrides(self, words: Mapping[str, Any]) -> Mixture:
        """Copy this mixture with other values in all its specs. Raises SpecError."""
        return Mixture(tuple(spec.with_overrides(words) for spec in self.specs))


def union_of(cases: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Unite the training cases of several specs: by key a list in which each value stands once."""
    united: dict[str, list[Any]] = {key: [] for key in cases[0]}
    for one in cases:
        for key, found in one.items():
            listed = found if isinstance(found, list) else [found]
            united[key] += [value for value in listed if value not in united[key]]
    return united

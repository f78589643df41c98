"""Sources of scenarios besides a `ServingSpec`: some scenarios of which one is drawn."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import EnvError
from servegym.scenarios.ranges import choose
from servegym.simulator.inputs.scenario import Scenario


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A source that draws one of some scenarios, each as likely."""

    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        if not self.scenarios:
            raise EnvError("there are no scenarios to draw one of; there should be at least one")

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return choose(rng, self.scenarios)

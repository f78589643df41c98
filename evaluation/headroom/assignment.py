"""A point of the search of routers: a heuristic, its parameters, and engines for single requests. It determines a run.

The router of a point calls the heuristic. Its `Policy.weights` are one number for each request of the workload, which
names the engine. So points of one heuristic differ in numbers only, and nothing is compiled for a new one. The router
is not registered: it is of no use on another workload.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from servegym.baselines import registry
from servegym.evaluation.headroom.point import from_unit, to_unit
from servegym.simulator.compilation.kernels import specialised
from servegym.simulator.fleet.routing import takes
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.parameters import Parameter
from servegym.simulator.policies.policy import Policy, Weights
from servegym.simulator.records.signatures import router
from servegym.simulator.records.types import STAY

AS_BASE = -1  # in place of an engine: the one that the base chooses


@router
def base(context, request, route):
    """Placeholder for the base router."""


PARAMETERS = 0  # placeholder: number of the base's parameters


@router
def reassigned(context, request, route):
    """Replace the engine that the base chose by the one that the weights name, if it takes the request: a template."""
    base(context, request, route)
    engine = int(context.parameters[PARAMETERS + request])
    snapshots, record = context.known.snapshots, context.requests[request]
    # The base's decision stands where it holds or refuses the request, and where the request has KV already (on its
    # way to a decode engine).
    if engine == AS_BASE or route.engine < 0 or record.computed_tokens > 0:
        return
    for e in range(snapshots.shape[0]):
        if snapshots[e].index == engine and takes(snapshots[e], record):
            route.engine, route.tier = e, STAY


@dataclasses.dataclass(frozen=True)
class Assignment:
    """base: a router by name. family: float64[parameters], those of `searched`, in units of their range. changes: the
    engine of each request that does not go where the base sends it, by its row in the workload."""

    base: str
    family: np.ndarray
    changes: Mapping[int, int] = dataclasses.field(default_factory=dict)
    no_change: ClassVar[int] = AS_BASE
    kind: ClassVar[str] = "router"

    @classmethod
    def of(cls, base: str) -> Assignment:
        """Make the point of a base alone, with its defaults or what its name says ("name:key=value")."""
        chosen: dict[str, Any] = registry.router(base).chosen()
        return cls(base, np.array([to_unit(one, chosen[one.name]) for one in searched(base)]))

    @property
    def settings(self) -> dict[str, float]:
        """The base's searched parameters by name, in their own units."""
        units = zip(searched(self.base), self.family, strict=True)
        return {one.name: from_unit(one, float(unit)) for one, unit in units}

    def changed(self, changes: Mapping[int, int]) -> Assignment:
        """Return the point with more changes; `AS_BASE` undoes the earlier one of its request."""
        together = {r: engine for r, engine in {**self.changes, **changes}.items() if engine != AS_BASE}
        return dataclasses.replace(self, changes=together)

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return the scenario under the router of this point."""
        policy, engines = registry.router(self.base), np.full(len(scenario.workload), float(AS_BASE))
        for r, engine in self.changes.items():
            engines[r] = engine
        router = dataclasses.replace(
            policy, name=f"reassigned {policy.name}", function=_function(policy),
            settings={**policy.settings, **self.settings}, weights=Weights(engines),
        )  # fmt: skip
        return dataclasses.replace(scenario, router=router)

    def to_json(self) -> dict[str, Any]:
        changes = {str(r): engine for r, engine in self.changes.items()}
        return {"base": self.base, "family": [float(unit) for unit in self.family], "changes": changes}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Assignment:
        changes = {int(r): int(engine) for r, engine in document["changes"].items()}
        return cls(document["base"], np.array(document["family"], "f8"), changes)


@functools.cache
def searched(base: str) -> tuple[Parameter, ...]:
    """Return the parameters of a router that a search varies: numbers with bounds."""
    policy = registry.router(base)
    return tuple(
        one
        for one in policy.parameters
        if not one.choices
        and np.isfinite([one.low, one.high]).all()
        and isinstance(policy.chosen()[one.name], float | int)
    )


def _function(policy: Policy) -> Any:
    return specialised(reassigned, base=policy.function, PARAMETERS=len(policy.parameters))

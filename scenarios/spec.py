"""`ServingSpec`: the requests, engines, policies and imperfections of scenarios; fixed, or a distribution.

    spec = ServingSpec(Demand(load=1.0), Fleet(engines=4), Policies(router="gorouting"))
    spec.build(seed=3)                                   # a Scenario

A field may have a `Range` or a tuple in place of a number, and a tuple in place of a name: then the spec is a
distribution, and each `build` draws from it. docs/spec.md has every field.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from servegym.errors import SpecError
from servegym.scenarios import checks, values
from servegym.scenarios.demand import Demand
from servegym.scenarios.fields import (
    FIRST_DRAWN,
    GAIN,
    LOAD,
    LOAD_PROFILE,
    NUMBER,
    POLICY_METAVAR,
    SEVERAL,
    WHOLE,
    Option,
    option,
    options_of,
)
from servegym.scenarios.parts import LINK_GB_PER_S, Fleet, Imperfection, Policies
from servegym.scenarios.ranges import Range, choose, draw

if TYPE_CHECKING:
    import numpy as np

    from servegym.simulator.inputs.cluster import Cluster
    from servegym.simulator.inputs.deployment import Deployment
    from servegym.simulator.inputs.scenario import Scenario
    from servegym.simulator.inputs.workload import Workload
    from servegym.simulator.policies.gains import Gain


@dataclasses.dataclass(frozen=True)
class ServingSpec:
    """The requests, engines, policies and imperfections of scenarios. `gain`: the gain of a token.

    Raises SpecError for values out of range and for combinations that are not allowed. Names are looked up when a
    scenario is built, which raises the errors of `load_profile`, `build_workload` and the registry of policies.
    """

    demand: Demand = Demand()
    fleet: Fleet = Fleet()
    policies: Policies = Policies()
    imperfection: Imperfection = Imperfection()
    gain: str | Gain = option(
        "tdg", GAIN,
        "Gain function of tokens: tdg, ta-slo, tempo, weighted-slo, vanilla-slo, session-slo; with first_weight, "
        "decode_weight, buffered_first_token=no.",
        metavar=POLICY_METAVAR,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.checked()

    def checked(self) -> ServingSpec:
        """Return this spec after checking its values and their combinations. Raises SpecError."""
        checks.check(self, PARTS, LEAVES)
        return self

    def build(
        self,
        seed: int | None = None,
        *,
        workload: Workload | None = None,
        deployment: Deployment | Cluster | None = None,
    ) -> Scenario:
        """Build the scenario of a seed (None: of `demand.seed`); the same seed gives the same bytes.

        workload, deployment: replace those that the spec describes.
        """
        from servegym.scenarios import building

        return building.build(self, self.demand.seed if seed is None else seed, workload, deployment)

    def __call__(self, rng: np.random.Generator) -> Scenario:
        """Draw a scenario with a generator; the same state of the generator gives the same bytes."""
        from servegym.scenarios import building

        return building.draw_scenario(self, rng)

    def workload(self, seed: int | None = None) -> Workload:
        """Build the requests of a seed. Raises SpecError for a distribution, and the errors of `build_workload`."""
        from servegym.scenarios import building

        return building.workload_of(self, self.demand.seed if seed is None else seed)

    @functools.cached_property
    def varied(self) -> tuple[str, ...]:
        """The fields with several values, or a range, in the order in which they are drawn."""
        several = [
            name for name, (_, one) in LEAVES.items()
            if values.is_several(one.kind, self[name])
        ]  # fmt: skip
        return tuple(sorted(several, key=lambda name: FIRST_DRAWN.index(name) if name in FIRST_DRAWN else 99))

    @property
    def is_distribution(self) -> bool:
        """Whether scenarios are drawn: some field has several values, or a range."""
        return bool(self.varied)

    def fixed(self, rng: np.random.Generator) -> ServingSpec:
        """Draw one value of each field."""
        return self.with_values({name: self.one(rng, name) for name in self.varied})

    def one(self, rng: np.random.Generator, name: str) -> Any:
        """Draw one of the values of a field; a single value is returned without a draw."""
        kind, value = LEAVES[name][1].kind, self[name]
        if kind == LOAD_PROFILE:
            return choose(rng, values.profiles_of(value))
        if isinstance(value, Range) or (isinstance(value, tuple) and kind in (NUMBER, WHOLE, LOAD)):
            number = draw(rng, value)
            return max(LEAVES[name][1].least or 0, round(number)) if kind == WHOLE else number
        return choose(rng, value) if isinstance(value, tuple) and kind in SEVERAL else value

    def with_values(self, changes: Mapping[str, Any]) -> ServingSpec:
        """Copy this spec with one of its own values in place of several, which is not checked again."""
        if not changes:
            return self
        state = {field.name: self.__dict__[field.name] for field in dataclasses.fields(self)}
        for name, value in changes.items():
            group = LEAVES[name][0]
            if not group:
                state[name] = value
                continue
            if state[group] is self.__dict__[group]:
                state[group] = _copied(state[group])
            state[group].__dict__[name] = value
        made = object.__new__(ServingSpec)
        made.__dict__.update(state, cache=self.cache)
        return made

    @functools.cached_property
    def cache(self) -> dict[Any, Any]:
        """Policies, profiles and deployments that were looked up for this spec, shared by specs drawn from it."""
        return {"varied": self.varied}

    def __getitem__(self, name: str) -> Any:
        """Return a field of any part by its name."""
        group = LEAVES[name][0]
        return getattr(getattr(self, group) if group else self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in dataclasses.fields(self)}

    def replaced(self, **words: Any) -> ServingSpec:
        """Copy this spec with other values of fields: see `with_overrides`."""
        return self.with_overrides(words)

    def with_overrides(self, words: Mapping[str, Any]) -> ServingSpec:
        """Copy this spec with other values, by the names of fields, at the top level or under the name of their part.

        A list stands for a tuple, {"low": ..., "high": ...} for a Range. A load replaces a rate or clients, engines
        replace prefill and decode engines, and the other way round. Raises SpecError for unknown or repeated fields and
        for values out of range.
        """
        changes = values.read(words, LEAVES, PARTS)
        given = {name for name, value in changes.items() if value is not None}
        if {"load", "rate_per_s"} <= given:
            raise SpecError("load and rate_per_s (--load and --rate) are both given; give one of them")
        for names, default in INSTEAD:
            for name in names:
                if name in given and changes[name] not in (0, ()):
                    changes = {other: default[other] for other in default if other not in names} | changes
        parts: dict[str, Any] = {}
        for name, value in changes.items():
            parts.setdefault(LEAVES[name][0], {})[name] = value
        top = parts.pop("", {})
        return dataclasses.replace(
            self, **{part: dataclasses.replace(getattr(self, part), **some) for part, some in parts.items()}, **top
        )

    def to_json(self) -> dict[str, Any]:
        """Return every field with JSON's types, by part; `from_json` reads it back."""
        document: dict[str, Any] = {}
        for name, value in self.overrides().items():
            part = LEAVES[name][0]
            (document.setdefault(part, {}) if part else document)[name] = value
        return document

    def overrides(self) -> dict[str, Any]:
        """Return every field with JSON's types, by its name alone. Policies are given by their labels."""
        return {name: values.plain(self[name]) for name in LEAVES}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ServingSpec:
        """Make the spec of a document; missing fields have their defaults. Raises the errors of `with_overrides`."""
        return cls().with_overrides(document)


def overridden(words: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Update fields with others, which also replace their alternatives (see `with_overrides`)."""
    gone = {
        other for names, default in INSTEAD if any(name in more for name in names) for other in default
        if other not in names
    }  # fmt: skip
    return {name: value for name, value in words.items() if name not in gone} | dict(more)


def _copied(part: Any) -> Any:
    made = object.__new__(type(part))
    made.__dict__.update(part.__dict__)
    return made


def _leaves() -> Iterator[tuple[str, tuple[str, Option]]]:
    for part, kind in PARTS.items():
        for name, one in options_of(kind).items():
            yield name, (part, one)
    for name, one in options_of(ServingSpec).items():
        yield name, ("", one)


PARTS: dict[str, type] = {
    "demand": Demand, "fleet": Fleet, "policies": Policies, "imperfection": Imperfection,
}  # fmt: skip
LEAVES: dict[str, tuple[str, Option]] = dict(_leaves())  # field -> its part (empty: the spec itself), its definition
# Alternatives: a field of one group sets the fields of the others to these values.
_RATES: dict[str, Any] = {"load": None, "rate_per_s": None, "clients": None}
_ENGINES: dict[str, Any] = {"engines": 1, "prefill": 0, "decode": 0, "pools": ()}
_ALIKE: dict[str, Any] = _ENGINES | {"decode_scheduler": None, "link_gb_per_s": LINK_GB_PER_S}
INSTEAD: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("load",), _RATES),
    (("rate_per_s",), _RATES),
    (("clients",), _RATES),
    (("engines",), _ALIKE),
    (("prefill", "decode"), _ENGINES),
    (("pools",), _ALIKE),
)

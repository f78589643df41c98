"""The scenarios of a training: each is drawn from one of several specs, the environment's own with changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import ServegymError, TrainingError
from servegym.latency_models.profile import load_profile
from servegym.scenarios import checks, values
from servegym.scenarios.fleets import FIND
from servegym.scenarios.presets import spelled_out
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec, overridden
from servegym.simulator.inputs.predictors import predictor_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import gain_of
from servegym.traces.families import FAMILIES
from servegym.traces.loading import load_trace
from servegym.traces.own_slos import recipe_of
from servegym.tuners.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A source that draws each scenario from one of its specs, all equally likely. file: named in errors of drawing."""

    specs: tuple[ServingSpec, ...]
    file: str = ""

    def __call__(self, rng: np.random.Generator) -> Scenario:
        try:
            return self.spec(rng)(rng)
        except ServegymError as error:  # of values that do not fit together, such as more requests than the trace has
            raise TrainingError(f"{self.file}: scenarios: {error}".removeprefix(": ")) from None

    def spec(self, rng: np.random.Generator) -> ServingSpec:
        """Draw the spec of a scenario; a single one is returned without a draw."""
        return self.specs[0 if len(self.specs) == 1 else int(rng.integers(len(self.specs)))]

    def with_overrides(self, words: Mapping[str, Any]) -> Mixture:
        """Copy this mixture with other values in all its specs. Raises SpecError."""
        return dataclasses.replace(self, specs=tuple(spec.with_overrides(words) for spec in self.specs))


def mixture_of(config: TrainingConfig, source: ServingSpec) -> Mixture:
    """Make the scenarios of a training. source: of its environment. Raises TrainingError, which names the key."""
    _check("scenarios", config.scenarios)
    specs = []
    for i, part in enumerate(config.mixture or ({},)):
        where = f"mixture[{i}]" if config.mixture else "scenarios"
        _check(where, part)
        try:
            spec = source.with_overrides(spelled_out(overridden(config.scenarios, part)))
        except ServegymError as error:  # of values that do not fit together
            raise TrainingError(f"{where}: {error}") from None
        if spec.demand.split != "train":
            where = where if "split" in part else "scenarios"
            raise TrainingError(
                f"{where}.split is {spec.demand.split!r}; training uses 'train', the others are for evaluation"
            )
        specs.append(spec)
    return Mixture(tuple(specs), config.file)


def _check(where: str, words: Mapping[str, Any]) -> None:
    """Raise TrainingError for the first key whose value is invalid by itself.

    Names are looked up now, as one of several may be drawn only after hours.
    """
    for key, given in words.items():
        try:
            for name, value in values.read(spelled_out({key: given}), LEAVES, PARTS).items():
                checks.check_value(name, LEAVES[name][1], value)
                for kind, one in _named(name, value):
                    LOOKED_UP[kind](one)
        except ServegymError as error:
            text = str(error)
            raise TrainingError(f"{where}.{text if text.startswith(f'{key} is ') else f'{key}: {text}'}") from None


def _named(field: str, value: Any) -> list[tuple[str, Any]]:
    """List the names in a value of a field, each with the field that it is a name of; and its incidents."""
    if field == "pools":
        found = [(name, getattr(pool, name)) for pool in value for name in ("device", "scheduler")]
    else:
        found = [(field, one) for one in (value if isinstance(value, tuple) else (value,))]
    return [(name, one) for name, one in found if name == "incidents" or (name in LOOKED_UP and isinstance(one, str))]


def _trace(name: str) -> None:
    if name not in FAMILIES and not Path(name).exists():
        load_trace(name)  # says what there is


LOOKED_UP: dict[str, Callable[[str], Any]] = {
    "trace": _trace, "slo": recipe_of, "device": load_profile, "gain": gain_of,
    "predictor": predictor_of, "incidents": values.incident_of, **FIND,
}  # fmt: skip


def union_of(cases: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Unite the training cases of several specs: by key a list in which each value stands once."""
    united: dict[str, list[Any]] = {key: [] for key in cases[0]}
    for one in cases:
        for key, found in one.items():
            listed = found if isinstance(found, list) else [found]
            united[key] += [value for value in listed if value not in united[key]]
    return united

"""The configuration of a tuning: studies with one budget on one panel, in a YAML file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from servegym.errors import TuningError
from servegym.evaluation.panels.panel import FIRST_SEED, Panel
from servegym.tuners.search.choosing import Range
from servegym.tuners.search.samplers import PRUNERS, SAMPLERS

FIRST_SEEDS = {"panel": 0, "validation": 500_000, "test": FIRST_SEED}  # defaults
PANELS = tuple(FIRST_SEEDS)


class Objective(NamedTuple):
    """figure: of `evaluation.figures`, of a run. direction: as Optuna has it. unit: of its mean."""

    figure: str
    direction: str
    doc: str
    unit: str = ""

    @property
    def larger_is_better(self) -> bool:
        return self.direction == "maximize"

    @property
    def sign(self) -> float:
        """1.0 if larger is better, else -1.0."""
        return 1.0 if self.larger_is_better else -1.0


OBJECTIVES = {
    "tdg": Objective("tdg_ratio", "maximize", "gain over ideal gain"),
    "attainment": Objective("slo_attainment", "maximize", "share of requests within their SLOs"),
    "high_priority_attainment": Objective(
        "slo_attainment_high_priority", "maximize", "share of the most important requests within their SLOs"
    ),
    "low_priority_attainment": Objective(
        "slo_attainment_low_priority", "maximize", "share of the least important requests within their SLOs"
    ),
    "cost": Objective("cost_engine_s", "minimize", "engine-seconds of a run", "s"),
}
FIGURES = tuple(objective.figure for objective in OBJECTIVES.values())  # of each instance, kept with a trial


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """The configuration of one study.

    scheduler, decode_scheduler, router, scaler: "name:key=value,..." in place of the panel's.
    tune: the parameters by name (see `build_space`); none: those that `searched_by_default` names.
    """

    scheduler: str | None = None
    decode_scheduler: str | None = None
    router: str | None = None
    scaler: str | None = None
    tune: Mapping[str, Range] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TuningConfig:
    """A tuning.

    panel: scores trials; its seeds are below 1,000,000. validation: fresh seeds, on which the best `top_k` trials and
        the defaults are run again; the best there wins. test: seeds from 1,000,000 on, on which the winner is compared
        with the defaults.
    studies: by name. trials: of each study. objectives: of `OBJECTIVES`; the first one decides. constraints: by
        objective, the least mean over the panel, or the largest mean cost. sampler, pruner: of `SAMPLERS`, `PRUNERS`.
    group: number of instances that run before each call of the pruner; it does not depend on parallelism.
    slices: number of values of each parameter that are tried in the winner, on the validation panel; 0: none.

    Raises TuningError for an invalid configuration.
    """

    name: str
    panel: Panel
    validation: Panel
    test: Panel
    studies: Mapping[str, StudyConfig]
    description: str = ""
    trials: int = 100
    sampler: str = "tpe"
    pruner: str = "none"
    top_k: int = 5
    seed: int = 0
    objectives: tuple[str, ...] = ("tdg",)
    constraints: Mapping[str, float] = dataclasses.field(default_factory=dict)
    group: int = 6
    slices: int = 7

    def __post_init__(self) -> None:
        checks = [
            ("name", bool(self.name) and "/" not in self.name, "some text without /"),
            ("trials", self.trials >= 1, "1 or more"),
            ("top_k", self.top_k >= 1, "1 or more"),
            ("seed", self.seed >= 0, "0 or more"),
            ("group", self.group >= 1, "1 or more"),
            ("slices", self.slices >= 0, "0 or more"),
            ("sampler", self.sampler in SAMPLERS, f"one of {', '.join(SAMPLERS)}"),
            ("pruner", self.pruner in PRUNERS, f"one of {', '.join(PRUNERS)}"),
            ("objectives", len(self.objectives) > 0, "at least one"),
        ]
        for name, holds, right in checks:
            if not holds:
                raise TuningError(f"{self.name}: {name} is {getattr(self, name)!r}; it should be {right}")
        for what, names in (("objective", self.objectives), ("constraint", tuple(self.constraints))):
            unknown = [name for name in names if name not in OBJECTIVES]
            if unknown:
                raise TuningError(f"{self.name}: unknown {what} {unknown[0]!r}; there are {', '.join(OBJECTIVES)}")
        if len(set(self.objectives)) < len(self.objectives):
            raise TuningError(f"{self.name}: an objective is named twice: {', '.join(self.objectives)}")
        if not self.studies:
            raise TuningError(f"{self.name}: there are no studies; name at least one")
        self._check_seeds()

    def _check_seeds(self) -> None:
        for panel in (self.panel, self.validation):
            if seeds_of(panel).stop > FIRST_SEED:
                raise TuningError(
                    f"{self.name}: seeds of {panel.name} go to {seeds_of(panel).stop - 1}; those from {FIRST_SEED:,} "
                    "on are kept for tests"
                )
        if self.test.first_seed < FIRST_SEED:
            raise TuningError(
                f"{self.name}: test has seeds from {self.test.first_seed} on; it should have those from {FIRST_SEED:,} "
                "on, which no tuning uses"
            )
        tuned, validated = seeds_of(self.panel), seeds_of(self.validation)
        if max(tuned.start, validated.start) < min(tuned.stop, validated.stop):
            raise TuningError(
                f"{self.name}: panel has seeds {tuned.start} to {tuned.stop - 1} and validation {validated.start} to "
                f"{validated.stop - 1}; they should have none in common"
            )

    @property
    def directions(self) -> list[str]:
        return [OBJECTIVES[name].direction for name in self.objectives]

    def replaced(self, **changes: Any) -> TuningConfig:
        """This tuning with other values; those that are None stay."""
        return dataclasses.replace(self, **{key: value for key, value in changes.items() if value is not None})

    def only(self, names: list[str]) -> TuningConfig:
        """This tuning with some of its studies. Raises TuningError for an unknown one."""
        unknown = [name for name in names if name not in self.studies]
        if unknown:
            raise TuningError(f"{self.name} has no study {unknown[0]!r}; it has {', '.join(self.studies)}")
        return dataclasses.replace(self, studies={name: self.studies[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            **{which: getattr(self, which).to_json() for which in PANELS},
            "studies": {name: dataclasses.asdict(study) for name, study in self.studies.items()},
            "objectives": list(self.objectives),
        }

    @property
    def document(self) -> dict[str, Any]:
        """The configuration as JSON reads it back: lists in place of tuples."""
        document: dict[str, Any] = json.loads(json.dumps(self.to_json()))
        return document


def seeds_of(panel: Panel) -> range:
    return range(panel.first_seed, panel.first_seed + panel.cells * panel.seeds)

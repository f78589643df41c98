"""The objectives of a study: which figures it maximises or minimises."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    """figure: of `evaluation.figures`, of a run. direction: as Optuna has it. unit: of its mean."""

    figure: str
    direction: str
    doc: str
    unit: str = ""

    @property
    def larger_is_better(self) -> bool:
        return self.direction == "maximize"


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

"""The results of a tuning, read back from its folder for pictures, reports and pages."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import TuningError
from servegym.evaluation.intervals import Interval
from servegym.evaluation.panels.statistics import bootstrap, difference
from servegym.evaluation.panels.tables import by_cell
from servegym.tuners.studies.candidates import DEFAULTS
from servegym.tuners.studies.objectives import OBJECTIVES, Objective
from servegym.tuners.studies.tables import ALL_LOADS
from servegym.tuners.studies.tuning import OUTCOME_FILE, TABLES

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, eq=False)
class StudyResults:
    """A study: document is its `outcome.json`, the others are the tables of `tuning.tables` (slices: may be empty)."""

    document: dict[str, Any]
    trials: pd.DataFrame
    validation: pd.DataFrame
    slices: pd.DataFrame
    test: pd.DataFrame
    parameters: pd.DataFrame
    differences: pd.DataFrame

    @property
    def name(self) -> str:
        return str(self.document["study"])

    @property
    def config(self) -> dict[str, Any]:
        """The tuning's configuration, as JSON."""
        return dict(self.document["config"])

    @property
    def objectives(self) -> list[Objective]:
        return [OBJECTIVES[name] for name in self.config["objectives"]]

    @property
    def objective(self) -> Objective:
        """The one that decides."""
        return self.objectives[0]

    @property
    def winner(self) -> str:
        """Label of the candidate that won in validation: "defaults", or "trial 37"."""
        return str(self.document["winner"]["candidate"])

    @property
    def kept_defaults(self) -> bool:
        """Whether no trial was better than the defaults in validation."""
        return bool(self.document["winner"]["is_defaults"])

    def labels(self, which: str) -> dict[str, str]:
        """Of the policies, by role. which: "winner" or "defaults"."""
        if which == "winner":
            return dict(self.document["winner"]["labels"])
        named = self.document["defaults"]["policies"]
        return {
            role: policy["name"] + "".join(f" {key}={value}" for key, value in policy["settings"].items())
            for role, policy in named.items()
        }

    def tested(self, candidate: str, against: str, load: float | str = ALL_LOADS) -> Interval:
        """By how much a candidate differs from another in the test, and the bounds of its 95 % interval."""
        table = self.differences
        row = table[
            (table["figure"] == self.objective.figure) & (table["candidate"] == candidate)
            & (table["against"] == against) & (table["load"].astype(str) == str(load))
        ].iloc[0]  # fmt: skip
        return Interval(*(float(row[name]) for name in ("difference", "difference_low", "difference_high")))

    def test_mean(self, candidate: str) -> float:
        """Of the objective that decides, over all runs of the test."""
        table = self.differences
        rows = table[(table["figure"] == self.objective.figure) & (table["load"].astype(str) == ALL_LOADS)]
        return float(rows["mean"][rows["candidate"] == candidate].iloc[0])

    @property
    def loads(self) -> list[str]:
        """Of the test, as `tested` takes them."""
        return [str(load) for load in self.differences["load"].astype(str).unique() if load != ALL_LOADS]


def read_study(folder: Path) -> StudyResults:
    """A study from its folder. Raises TuningError for files that are missing or damaged."""
    import pandas as pd

    path = folder / OUTCOME_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        tables = {}
        for name in TABLES:
            path = folder / f"{name}.csv"
            tables[name] = pd.read_csv(path) if path.exists() or name != "slices" else pd.DataFrame()
    except OSError as error:
        raise TuningError(f"{path}: {error.strerror}; a study that is through has it") from None
    except ValueError as error:
        raise TuningError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    return StudyResults(document, **tables)


def paired(rows: pd.DataFrame, baseline: pd.DataFrame, figure: str) -> Interval:
    """Mean of a figure over runs less that over the same runs of a baseline, with its 95 % interval."""
    return bootstrap(difference, by_cell(rows, figure), by_cell(baseline, figure))


def of_candidate(rows: pd.DataFrame, label: str = DEFAULTS) -> pd.DataFrame:
    return rows[rows["candidate"] == label]

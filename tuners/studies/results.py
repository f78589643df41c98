"""The results of a study, and their files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.intervals import Interval
from servegym.evaluation.panels.statistics import bootstrap, difference
from servegym.evaluation.panels.tables import by_cell
from servegym.tuners.studies.candidates import DEFAULTS
from servegym.tuners.studies.config import OBJECTIVES, Objective
from servegym.tuners.studies.tables import ALL_LOADS

if TYPE_CHECKING:
    import pandas as pd

    from servegym.tuners.search.space import Settings

OUTCOME_FILE, RUNS_FILE = "outcome.json", "trial_runs.parquet"
TABLES = ("trials", "validation", "slices", "test", "parameters", "differences")


@dataclasses.dataclass(frozen=True, eq=False)
class StudyResults:
    """A finished study.

    document: its `outcome.json`. trials, parameters, differences, trial_runs: tables of `studies.tables`.
    validation: a row a run of the best k trials and the defaults. slices: a row a run on the validation panel with one
        parameter changed from the winner on: parameter, value; may be empty.
    test: a row a run of "defaults", "winner" and "schedule" (policy: which candidate that is).
    trial_runs: None if the study was read from files (`experiments.tuning.whole`).
    """

    document: dict[str, Any]
    trials: pd.DataFrame
    validation: pd.DataFrame
    slices: pd.DataFrame
    test: pd.DataFrame
    parameters: pd.DataFrame
    differences: pd.DataFrame
    trial_runs: pd.DataFrame | None = None

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
        """The first objective, which decides."""
        return self.objectives[0]

    @property
    def winner(self) -> str:
        """Label of the candidate that won in validation: "defaults", or "trial 37"."""
        return str(self.document["winner"]["candidate"])

    @property
    def settings(self) -> Settings | None:
        """The winner's parameters by role; None if no trial was better than the defaults."""
        settings: Settings | None = self.document["winner"]["settings"]
        return settings

    @property
    def kept_defaults(self) -> bool:
        """Whether no trial was better than the defaults in validation."""
        return bool(self.document["winner"]["is_defaults"])

    @property
    def labels(self) -> dict[str, str]:
        """The winner's policies by role, with their parameters."""
        return dict(self.document["winner"]["labels"])

    def tested(self, candidate: str, against: str, load: float | str = ALL_LOADS) -> Interval:
        """Return the difference of a candidate to another in the test, with its 95 % interval."""
        table = self.differences
        row = table[
            (table["figure"] == self.objective.figure) & (table["candidate"] == candidate)
            & (table["against"] == against) & (table["load"].astype(str) == str(load))
        ].iloc[0]  # fmt: skip
        return Interval(*(float(row[name]) for name in ("difference", "difference_low", "difference_high")))

    def test_mean(self, candidate: str) -> float:
        """Return the mean of the deciding objective over all runs of the test."""
        table = self.differences
        rows = table[(table["figure"] == self.objective.figure) & (table["load"].astype(str) == ALL_LOADS)]
        return float(rows["mean"][rows["candidate"] == candidate].iloc[0])

    @property
    def loads(self) -> list[str]:
        """Loads of the test, as `tested` takes them."""
        return [str(load) for load in self.differences["load"].astype(str).unique() if load != ALL_LOADS]


def save_study(results: StudyResults, folder: Path) -> None:
    """Write the files of a study into its folder; `outcome.json` is the last."""
    for name in TABLES:
        table: pd.DataFrame = getattr(results, name)
        if len(table):
            table.to_csv(folder / f"{name}.csv", index=False)
    if results.trial_runs is not None:
        results.trial_runs.to_parquet(folder / RUNS_FILE, index=False)
    text = json.dumps(results.document, indent=1, allow_nan=False)
    (folder / OUTCOME_FILE).write_text(text + "\n", encoding="utf-8")


def paired(rows: pd.DataFrame, baseline: pd.DataFrame, figure: str) -> Interval:
    """Subtract the mean of a figure over a baseline's runs from that over the same runs; with its 95 % interval."""
    return bootstrap(difference, by_cell(rows, figure), by_cell(baseline, figure))


def of_candidate(rows: pd.DataFrame, label: str = DEFAULTS) -> pd.DataFrame:
    return rows[rows["candidate"] == label]

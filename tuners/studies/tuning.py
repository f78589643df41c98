"""A tuning: its studies one after the other, each continued where it stopped, and their results in files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.identity import versions
from servegym.evaluation.running import Runner
from servegym.simulator.compilation.locks import held
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.objectives import OBJECTIVES
from servegym.tuners.studies.search import Search, optuna_version
from servegym.tuners.studies.selection import means_of, meets
from servegym.tuners.studies.study import StudyOutcome, conclude, search_trials, study_name
from servegym.tuners.studies.tables import ALL_LOADS

if TYPE_CHECKING:
    import pandas as pd

OUTCOME_FILE, STUDIES_FILE, CONFIG_FILE = "outcome.json", "studies.csv", "tuning.json"
TABLES = ("trials", "validation", "slices", "test", "parameters", "differences")
Progress = Callable[[str, str, int, int], None]  # (study, what, done, in all)


def prepared(config: TuningConfig) -> dict[str, Search]:
    """Every study made ready, so that an error in any of them shows before the first trial.

    Raises SearchError, TuningError, PolicyError, ProfileError, WorkloadError.
    """
    searches = {name: Search(config, name) for name in config.studies}
    made_ready(searches)
    return searches


def made_ready(searches: Mapping[str, Search]) -> None:
    """Work out where each search begins, for which panels are served (minutes, where kernels are to be compiled)."""
    for search in searches.values():
        _ = search.first_points


def run_tuning(
    config: TuningConfig,
    directory: Path,
    runner: Runner,
    progress: Progress = lambda study, what, done, in_all: None,
    *,
    storage_url: str | None = None,
    trials_only: bool = False,
) -> Iterator[StudyOutcome]:
    """The outcome of each study as soon as it is known; its files are in the folder of its name then.

    storage_url: None: a journal in the directory, else a database, which any number of processes can do trials of.
    trials_only: such a process, which leaves what follows the trials to another; nothing is yielded.

    Finished work is kept, and the same call continues from it. Raises as `prepared` does, StorageError and WorkError.
    """
    from servegym.tuners.search.storage import open_storage

    searches = {name: Search(config, name) for name in config.studies}
    storage = None if storage_url is None else open_storage(storage_url, directory)  # before what takes minutes
    made_ready(searches)
    storage = storage or open_storage(None, directory)  # a folder, made only for a tuning that is valid
    for name, search in searches.items():

        def report_progress(what: str, done: int, in_all: int, name: str = name) -> None:
            progress(name, what, done, in_all)

        search.instances.compile(search.policies)
        trials = search_trials(search, storage, runner, report_progress)
        if not trials_only:
            with alone(directory / name):
                outcome = conclude(search, trials, directory / name, runner, report_progress)
                save_outcome(outcome, directory / name)
            yield outcome


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Admit one process at a time, so that workers that share a folder do the runs once and get the same outcome."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file, held(file):
        yield


def save_outcome(outcome: StudyOutcome, directory: Path) -> list[Path]:
    """Write the tables of a study and `outcome.json`; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for name in TABLES:
        table: pd.DataFrame = getattr(outcome, name)
        if len(table):
            table.to_csv(directory / f"{name}.csv", index=False)
            files.append(directory / f"{name}.csv")
    outcome.trial_runs.to_parquet(directory / "trial_runs.parquet", index=False)
    path = directory / OUTCOME_FILE
    path.write_text(json.dumps(outcome_document(outcome), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [*files, directory / "trial_runs.parquet", path]


def outcome_document(outcome: StudyOutcome) -> dict[str, Any]:
    """The outcome of a study, as JSON: the winner's policies, the scores, and everything they depend on."""
    search, config = outcome.search, outcome.search.config
    policies = search.policies_with(outcome.settings)
    tuned = outcome.trials[outcome.trials["state"] == "complete"].set_index("trial")
    validation = means_of(outcome.validation)
    best = best_trial(outcome)
    return {
        "tuning": config.name,
        "study": search.name,
        "study_name": study_name(config, search.name),
        "description": config.description,
        "winner": {
            "candidate": outcome.winner.label,
            "is_defaults": outcome.settings is None,
            "settings": outcome.settings,
            "policies": {role: policy.to_json() for role, policy in policies.items()},
            "labels": {role: policy.label for role, policy in policies.items()},
        },
        "defaults": {
            "settings": search.space.settings(search.defaults),
            "policies": {role: policy.to_json() for role, policy in search.policies.items()},
        },
        "schedule": [
            {"load": load, "candidate": label, "settings": _settings_of(outcome, label)}
            for load, label in outcome.schedule.items()
        ],
        "trials": {
            "asked_for": search.trials,
            **{state: int((outcome.trials["state"] == state).sum()) for state in ("complete", "pruned")},
            "best": best,
        },
        "scores": {
            "tuning": {DEFAULTS: _row(tuned, 0), "best": None if best is None else _row(tuned, best)},
            "validation": {
                DEFAULTS: _row(validation, DEFAULTS),
                WINNER: _row(validation, outcome.winner.label),
                "meets_constraints": meets(config, validation.loc[outcome.winner.label]),
            },
            "test": _test_scores(outcome.differences),
        },
        "config": config_document(config),
        "seeds": {which: _seeds(config, which) for which in ("panel", "validation", "test")},
        "versions": versions() | optuna_version(),
        "code": search.identity["code"],
    }


def best_trial(outcome: StudyOutcome) -> int | None:
    """The complete, feasible trial with the best score on the panel, by the first objective: the noisy best."""
    objective = OBJECTIVES[outcome.search.config.objectives[0]]
    table = outcome.trials
    usable = table[(table["state"] == "complete") & table["feasible"]]
    if usable.empty:
        return None
    scores = usable[objective.figure]
    return int(usable["trial"][scores.idxmax() if objective.larger_is_better else scores.idxmin()])


def config_document(config: TuningConfig) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(config.to_json()))
    return document


def studies_table(outcomes: list[StudyOutcome]) -> pd.DataFrame:
    """A row a study: policies, what was searched, and what the test says of the first objective: its mean under the
    defaults and the winner, and the difference with its interval; schedule_difference: of schedule to winner."""
    import pandas as pd

    rows = []
    for outcome in outcomes:
        config = outcome.search.config
        figure = OBJECTIVES[config.objectives[0]].figure
        table = outcome.differences
        overall = table[(table["load"] == ALL_LOADS) & (table["figure"] == figure)]
        rows.append(
            {
                "study": outcome.search.name,
                "searched": " ".join(outcome.search.space.names),
                "trials": len(outcome.trials),
                "figure": figure,
                **{role: policy.label for role, policy in outcome.search.policies_with(outcome.settings).items()},
                "winner": outcome.winner.label,
                **_compared(overall, WINNER, DEFAULTS, ""),
                **_compared(overall, SCHEDULE, WINNER, "schedule_"),
            }
        )
    return pd.DataFrame(rows)


def save_tuning(config: TuningConfig, outcomes: list[StudyOutcome], directory: Path) -> list[Path]:
    """Write `studies.csv` and `tuning.json`, what was asked for; returns the files."""
    studies, asked = directory / STUDIES_FILE, directory / CONFIG_FILE
    studies_table(outcomes).to_csv(studies, index=False)
    document = config_document(config) | {"versions": versions() | optuna_version()}
    asked.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return [studies, asked]


def _compared(overall: pd.DataFrame, one: str, other: str, prefix: str) -> dict[str, Any]:
    row = overall[(overall["candidate"] == one) & (overall["against"] == other)].iloc[0]
    names = ("difference", "difference_low", "difference_high")
    found = {f"{prefix}{name}": row[name] for name in names}
    if not prefix:
        means = {label: overall["mean"][overall["candidate"] == label].iloc[0] for label in dict.fromkeys((other, one))}
        found = {f"{label}_mean": value for label, value in means.items()} | found
    return found


def _test_scores(differences: pd.DataFrame) -> list[dict[str, Any]]:
    overall = differences[differences["load"] == ALL_LOADS].drop(columns="load")
    return [
        {key: value for key, value in row.items() if value == value and value is not None}  # without NaN
        for row in overall.to_dict("records")
    ]


def _row(table: pd.DataFrame, label: Any) -> dict[str, float | None] | None:
    if label not in table.index:
        return None
    figures = [objective.figure for objective in OBJECTIVES.values()]
    row = table.loc[label]
    return {name: None if row[name] is None or row[name] != row[name] else float(row[name]) for name in figures}


def _settings_of(outcome: StudyOutcome, label: str) -> Any:
    """Of a trial by its label; None for the defaults."""
    if label == DEFAULTS:
        return None
    row = outcome.trials.set_index("trial").loc[int(label.removeprefix("trial "))]
    settings: dict[str, dict[str, Any]] = {role: {} for role in outcome.search.policies}
    for variable in outcome.search.space.variables:
        for role, parameter in variable.members:
            value = row[f"{role}.{parameter}"]
            settings[role][parameter] = value.item() if hasattr(value, "item") else value
    return settings


def _seeds(config: TuningConfig, which: str) -> dict[str, int]:
    from servegym.tuners.studies.config import seeds_of

    seeds = seeds_of(getattr(config, which))
    return {"first": seeds.start, "last": seeds.stop - 1}

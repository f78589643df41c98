"""A study from its first trial to the test of its winner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.running import Runner
from servegym.tuners.search.space import Settings
from servegym.tuners.studies.candidates import (
    DEFAULTS,
    SCHEDULE,
    WINNER,
    Candidate,
    Pair,
    Progress,
    on_all,
    run_candidates,
)  # fmt: skip
from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.instances import instances_of
from servegym.tuners.studies.search import Search
from servegym.tuners.studies.selection import best_trials, choose, choose_by_load, nearest
from servegym.tuners.studies.tables import differences_table, parameters_table, runs_table, trials_table

if TYPE_CHECKING:
    import pandas as pd
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from servegym.tuners.search.storage import Shared

RUNS_FOLDER = "runs"


@dataclasses.dataclass(frozen=True)
class StudyOutcome:
    """What came of a study.

    trials, trial_runs, parameters, differences: tables of `tuning.tables`.
    validation: a row a run of the best k trials and the defaults. slices: a row a run on the validation panel with one
        parameter changed from the winner on: parameter, value.
    test: a row a run of "defaults", "winner" and "schedule" (policy: which candidate that is); differences: what they
        say.
    winner: label and settings; None where it is the defaults. schedule: by load, the label that is best there.
    """

    search: Search
    trials: pd.DataFrame
    trial_runs: pd.DataFrame
    validation: pd.DataFrame
    slices: pd.DataFrame
    test: pd.DataFrame
    parameters: pd.DataFrame
    differences: pd.DataFrame
    winner: Candidate
    schedule: dict[float, str]

    @property
    def settings(self) -> Settings | None:
        """Of the winner; None: the defaults were not beaten."""
        return self.winner.settings


def search_trials(search: Search, storage: Shared, runner: Runner, progress: Progress) -> list[FrozenTrial]:
    """Run the open trials of a study, beside any other workers; returns all finished ones, in order."""
    from servegym.tuners.search.workers import work

    return work(
        open_search(search, storage),
        search.objective(runner),
        search.trials,
        search.sampler,
        enqueue=search.first_points,
        progress=lambda done, trials: progress("trials", done, trials),
    )


def open_search(search: Search, storage: Shared) -> Study:
    """The study in a storage: new, or as it was left. Raises ForeignStudyError, StorageError."""
    from servegym.tuners.search.storage import open_study

    return open_study(
        storage, study_name(search.config, search.name), search.identity, search.config.directions, search.pruner
    )  # fmt: skip


def study_name(config: TuningConfig, name: str) -> str:
    """Of a study in a storage, where those of other tunings are too."""
    return f"{config.name}.{name}"


def conclude(
    search: Search, trials: list[FrozenTrial], directory: Path, runner: Runner, progress: Progress
) -> StudyOutcome:
    """From finished trials to an outcome: best k and defaults on validation, winner and defaults on test.

    directory: of the study; its runs are kept there as they come.
    """
    config = search.config
    runs = directory / RUNS_FOLDER
    runs.mkdir(parents=True, exist_ok=True)
    candidates = {one.label: one for one in [Candidate(DEFAULTS), *best_trials(search, trials)]}

    def on(which: str, pairs: list[Pair]) -> pd.DataFrame:
        panel = getattr(config, which)
        return run_candidates(search, panel, pairs, runs / f"{which}.jsonl", runner, progress)

    validation = on("validation", on_all(candidates.values(), config.validation))
    winner = candidates[choose(config, validation)]
    by_load = choose_by_load(config, validation)
    slices = _sliced(search, winner, lambda pairs: on("validation", pairs))
    test = _tested(config, candidates, winner, by_load, lambda pairs: on("test", pairs))
    at_load = {load: candidates[label].settings for load, label in by_load.items()}
    return StudyOutcome(
        search,
        trials_table(search, trials),
        runs_table(search, trials),
        validation,
        slices,
        test,
        parameters_table(search, winner.settings, at_load),
        differences_table(test),
        winner,
        by_load,
    )


def _sliced(search: Search, winner: Candidate, run: Callable[[list[Pair]], pd.DataFrame]) -> pd.DataFrame:
    """Runs of the winner with one parameter at a time at other values, over its range."""
    import pandas as pd

    config = search.config
    settings = winner.settings or search.space.settings(search.defaults)
    places: dict[str, tuple[str, Any]] = {}
    candidates = []
    for variable in search.space.variables:
        for level in variable.levels(config.slices) if config.slices else []:
            changed = search.space.changed(settings, variable, level)
            label = f"{variable.name} = {level}"
            role, parameter = variable.members[0]
            places[label] = (f"{role}.{parameter}", changed[role][parameter])
            candidates.append(Candidate(label, changed))
    if not candidates:
        return pd.DataFrame()
    rows = run(on_all(candidates, config.validation))
    rows.insert(0, "parameter", [places[label][0] for label in rows["candidate"]])
    rows.insert(1, "value", [places[label][1] for label in rows["candidate"]])
    return rows.drop(columns="candidate")


def _tested(
    config: TuningConfig,
    candidates: dict[str, Candidate],
    winner: Candidate,
    by_load: dict[float, str],
    run: Callable[[list[Pair]], pd.DataFrame],
) -> pd.DataFrame:
    """Runs of the defaults, the winner, and the schedule: at each load what was best there in validation."""
    import pandas as pd

    instances = instances_of(config.test)
    defaults = candidates[DEFAULTS]
    wanted: list[tuple[str, Pair]] = []
    for index, instance in enumerate(instances.all):
        scheduled = candidates[nearest(by_load, instance.load)]
        pairs = {DEFAULTS: defaults, WINNER: winner, SCHEDULE: scheduled}
        wanted += [(label, (candidate, index)) for label, candidate in pairs.items()]
    rows = run([pair for _, pair in wanted])
    rows.insert(1, "policy", rows["candidate"])
    rows["candidate"] = [label for label, _ in wanted]
    order = {DEFAULTS: 0, WINNER: 1, SCHEDULE: 2}
    rows = rows.sort_values("candidate", key=lambda labels: labels.map(order), kind="stable", ignore_index=True)
    return pd.DataFrame(rows)

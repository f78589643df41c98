"""A tuning: its studies one after the other, each continued where it stopped, and their results in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.evaluation.identity import versions
from servegym.evaluation.running import Runner
from servegym.simulator.compilation.locks import alone_in
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.results import StudyResults, save_study
from servegym.tuners.studies.search import Search, optuna_version
from servegym.tuners.studies.study import conclude

if TYPE_CHECKING:
    import pandas as pd

STUDIES_FILE, CONFIG_FILE = "studies.csv", "tuning.json"
Progress = Callable[[str, str, int, int], None]  # (study, what, done, in all)


def run_tuning(
    config: TuningConfig,
    directory: Path,
    runner: Runner,
    progress: Progress = lambda study, what, done, in_all: None,
    *,
    storage_url: str | None = None,
    trials_only: bool = False,
) -> Iterator[StudyResults]:
    """Run the studies of a tuning; yields the results of each when its files are in the folder of its name.

    storage_url: None: a journal in the directory, else a database, which any number of processes can do trials of.
    trials_only: such a process, which leaves what follows the trials to another; nothing is yielded.

    Finished work is kept, and the same call continues from it. An error in any study shows before the first trial:
    SearchError, TuningError, PolicyError, ProfileError, WorkloadError. Raises StorageError and WorkError later.
    """
    from servegym.tuners.search.storage import open_storage

    searches = {name: Search(config, name) for name in config.studies}
    storage = None if storage_url is None else open_storage(storage_url, directory)  # before what takes minutes
    for search in searches.values():
        _ = search.first_points  # panels are served for it: minutes, where kernels are to be compiled
    storage = storage or open_storage(None, directory)  # a folder, made only for a tuning that is valid
    for name, search in searches.items():

        def report_progress(what: str, done: int, in_all: int, name: str = name) -> None:
            progress(name, what, done, in_all)

        search.instances.compile(search.policies)
        trials = search.run_trials(storage, runner, report_progress)
        if not trials_only:
            with alone_in(directory / name):  # of workers that share a folder, one does the runs
                results = conclude(search, trials, directory / name, runner, report_progress)
                save_study(results, directory / name)
            yield results


def studies_table(studies: list[StudyResults]) -> pd.DataFrame:
    """Make a row a study: policies, what was searched, and its test by the first objective: the means of the defaults
    and the winner, and the difference with its interval; schedule_difference: of schedule to winner."""
    import pandas as pd

    rows = []
    for results in studies:
        row = {
            "study": results.name,
            "searched": " ".join(results.parameters["variable"].unique()),
            "trials": len(results.trials),
            "figure": results.objective.figure,
            **results.labels,
            "winner": results.winner,
            **{f"{candidate}_mean": results.test_mean(candidate) for candidate in (DEFAULTS, WINNER)},
        }
        for prefix, candidate, against in (("", WINNER, DEFAULTS), ("schedule_", SCHEDULE, WINNER)):
            names = (f"{prefix}difference", f"{prefix}difference_low", f"{prefix}difference_high")
            row |= dict(zip(names, results.tested(candidate, against), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def save_tuning(config: TuningConfig, studies: list[StudyResults], directory: Path) -> list[Path]:
    """Write `studies.csv` and the configuration, `tuning.json`; returns the files."""
    table, document = directory / STUDIES_FILE, directory / CONFIG_FILE
    studies_table(studies).to_csv(table, index=False)
    text = json.dumps(config.document | {"versions": versions() | optuna_version()}, indent=1)
    document.write_text(text + "\n", encoding="utf-8")
    return [table, document]

"""A study from its finished trials to the test of its winner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.identity import versions
from servegym.evaluation.running import Runner
from servegym.tuners.search.storage import quiet
from servegym.tuners.studies.candidates import (
    DEFAULTS,
    SCHEDULE,
    WINNER,
    Candidate,
    Pair,
    Progress,
    best_trials,
    choose,
    choose_by_load,
    means_of,
    meets,
    nearest,
    on_all,
    run_candidates,
)  # fmt: skip
from servegym.tuners.studies.config import OBJECTIVES, PANELS, TuningConfig, seeds_of
from servegym.tuners.studies.instances import instances_of
from servegym.tuners.studies.results import StudyResults
from servegym.tuners.studies.search import Search, optuna_version
from servegym.tuners.studies.tables import (
    ALL_LOADS,
    differences_table,
    known_figures,
    parameters_table,
    runs_table,
    trials_table,
)

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import FrozenTrial

RUNS_FOLDER = "runs"
FEWEST_TRIALS = 20  # complete trials needed to estimate importance


def conclude(
    search: Search, trials: list[FrozenTrial], directory: Path, runner: Runner, progress: Progress
) -> StudyResults:
    """Run the best k trials and the defaults on validation, and winner, schedule and defaults on the test.

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
    schedule = {load: candidates[label] for load, label in choose_by_load(config, validation).items()}
    slices = _sliced(search, winner, lambda pairs: on("validation", pairs))
    test = _tested(config, candidates[DEFAULTS], winner, schedule, lambda pairs: on("test", pairs))
    differences = differences_table(test)
    table = trials_table(search, trials)
    return StudyResults(
        _document(search, winner, schedule, table, means_of(validation), differences)
        | {"importance": importance(search, trials)},
        table,
        validation,
        slices,
        test,
        parameters_table(search, winner.settings, {load: one.settings for load, one in schedule.items()}),
        differences,
        runs_table(search, trials),
    )


def _sliced(search: Search, winner: Candidate, run: Callable[[list[Pair]], pd.DataFrame]) -> pd.DataFrame:
    """Run the winner with one parameter at a time at other values, over its range."""
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
    config: TuningConfig, defaults: Candidate, winner: Candidate, schedule: dict[float, Candidate],
    run: Callable[[list[Pair]], pd.DataFrame],
) -> pd.DataFrame:  # fmt: skip
    """Run the defaults, the winner, and the schedule: at each load the best candidate there in validation."""
    instances = instances_of(config.test).all
    wanted = (
        [(DEFAULTS, (defaults, index)) for index in range(len(instances))]
        + [(WINNER, (winner, index)) for index in range(len(instances))]
        + [(SCHEDULE, (nearest(schedule, instance.load), index)) for index, instance in enumerate(instances)]
    )
    rows = run([pair for _, pair in wanted])
    rows.insert(1, "policy", rows["candidate"])
    rows["candidate"] = [label for label, _ in wanted]
    return rows


def _document(
    search: Search, winner: Candidate, schedule: dict[float, Candidate], trials: pd.DataFrame, validation: pd.DataFrame,
    differences: pd.DataFrame,
) -> dict[str, Any]:  # fmt: skip
    """Make `outcome.json`: the winner's policies, the scores, and everything they depend on.

    validation: mean figures by candidate.
    """
    config = search.config
    policies = search.policies_with(winner.settings)
    complete = trials[trials["state"] == "complete"].set_index("trial")
    best = _best_trial(config, complete)
    overall = differences[differences["load"] == ALL_LOADS].drop(columns="load")
    return {
        "tuning": config.name,
        "study": search.name,
        "study_name": search.study_name,
        "description": config.description,
        "winner": {
            "candidate": winner.label,
            "is_defaults": winner.settings is None,
            "settings": winner.settings,
            "policies": {role: policy.to_json() for role, policy in policies.items()},
            "labels": {role: policy.label for role, policy in policies.items()},
        },
        "defaults": {
            "settings": search.space.settings(search.defaults),
            "policies": {role: policy.to_json() for role, policy in search.policies.items()},
        },
        "schedule": [
            {"load": load, "candidate": one.label, "settings": one.settings} for load, one in schedule.items()
        ],
        "trials": {
            "asked_for": search.trials,
            **{state: int((trials["state"] == state).sum()) for state in ("complete", "pruned")},
            "best": best,
        },
        "scores": {
            "tuning": {
                DEFAULTS: known_figures(complete.loc[0]) if 0 in complete.index else None,
                "best": None if best is None else known_figures(complete.loc[best]),
            },
            "validation": {
                DEFAULTS: known_figures(validation.loc[DEFAULTS]),
                WINNER: known_figures(validation.loc[winner.label]),
                "meets_constraints": meets(config, validation.loc[winner.label]),
            },
            "test": [
                {key: value for key, value in row.items() if value == value and value is not None}  # without NaN
                for row in overall.to_dict("records")
            ],
        },
        "config": config.document,
        "seeds": {
            which: {"first": (seeds := seeds_of(getattr(config, which))).start, "last": seeds.stop - 1}
            for which in PANELS
        },
        "versions": versions() | optuna_version(),
        "code": search.identity["code"],
    }


def _best_trial(config: TuningConfig, complete: pd.DataFrame) -> int | None:
    """Find the complete, feasible trial with the best score on the panel, by the first objective: the noisy best."""
    objective = OBJECTIVES[config.objectives[0]]
    scores = complete[objective.figure][complete["feasible"]]
    if scores.empty:
        return None
    return int(scores.idxmax() if objective.larger_is_better else scores.idxmin())


def importance(search: Search, trials: list[FrozenTrial]) -> dict[str, float]:
    """Estimate the share of the spread of the score that each variable accounts for, the largest first; empty for few
    trials.

    Optuna's PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) on the complete trials: how much the distribution of a
    variable in the best tenth of the trials differs from that in all.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator

    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    if len(complete) < FEWEST_TRIALS or len(search.space.variables) < 2:
        return {}
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")  # that the evaluator may change
        study = optuna.create_study(directions=[optuna.study.StudyDirection[search.config.directions[0].upper()]])
        for trial in complete:  # by the first objective alone
            value = trial.values[0]  # noqa: PD011 (a trial of Optuna)
            study.add_trial(optuna.create_trial(params=trial.params, distributions=trial.distributions, value=value))
        found = optuna.importance.get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))

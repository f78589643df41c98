"""From many trials to one winner: of the k best by their noisy scores, the one that is best on other seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servegym.tuners.studies.candidates import DEFAULTS, Candidate
from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.objectives import OBJECTIVES
from servegym.tuners.studies.search import SETTINGS, Search, excess

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import FrozenTrial


def best_trials(search: Search, trials: list[FrozenTrial]) -> list[Candidate]:
    """The best k trials that met the constraints, different from each other and from the defaults; best first.

    trials: in the order of their numbers, as `work` returns them. Of several objectives those that no other trial
    exceeds in all come first; the first objective decides among them.
    """
    config = search.config
    usable = [
        (number, trial) for number, trial in enumerate(trials)
        if trial.state.name == "COMPLETE" and all(value <= 0 for value in trial.constraints.values())
    ]  # fmt: skip
    if len(config.objectives) > 1:
        front = [pair for pair in usable if not any(_dominates(config, other, pair[1]) for _, other in usable)]
        usable = front
    sign = -1.0 if OBJECTIVES[config.objectives[0]].larger_is_better else 1.0
    usable.sort(key=lambda pair: (sign * float(pair[1].values[0]), pair[0]))  # noqa: PD011 (a trial of Optuna)
    found: dict[str, Candidate] = {}
    for number, trial in usable:
        candidate = Candidate(f"trial {number}", trial.user_attrs[SETTINGS])
        if number > 0:  # trial 0 is the defaults, which are validated anyway
            found.setdefault(candidate.key, candidate)
    return list(found.values())[: config.top_k]


def _dominates(config: TuningConfig, one: FrozenTrial, other: FrozenTrial) -> bool:
    signs = [1.0 if OBJECTIVES[name].larger_is_better else -1.0 for name in config.objectives]
    pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, one.values, other.values, strict=True)]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def choose(config: TuningConfig, rows: pd.DataFrame) -> str:
    """The label of the candidate that wins: the best mean of the first objective of those that meet the constraints.

    The defaults win a tie; and where no candidate meets the constraints, whether they do or not.
    """
    means = means_of(rows)
    sign = 1.0 if OBJECTIVES[config.objectives[0]].larger_is_better else -1.0
    score = sign * means[OBJECTIVES[config.objectives[0]].figure]
    allowed = {label: meets(config, means.loc[label]) for label in means.index}
    best, best_score = DEFAULTS, score[DEFAULTS] if allowed[DEFAULTS] else -math.inf
    for label in means.index:
        if label != DEFAULTS and allowed[label] and score[label] > best_score:
            best, best_score = label, score[label]
    return str(best)


def choose_by_load(config: TuningConfig, rows: pd.DataFrame) -> dict[float, str]:
    """For each load the candidate that is best there, of those that meet the constraints over all loads.

    If none does, the defaults are chosen.
    """
    means = means_of(rows)
    allowed = [label for label in means.index if label == DEFAULTS or meets(config, means.loc[label])]
    of_allowed = rows[rows["candidate"].isin(allowed)]
    unconstrained = config.replaced(constraints={})
    return {float(load): choose(unconstrained, at_load) for load, at_load in of_allowed.groupby("load", sort=True)}


def nearest(schedule: dict[float, str], load: float) -> str:
    """The schedule's entry for a load: that of its nearest load, by ratio."""
    return schedule[min(schedule, key=lambda known: (abs(math.log(known / load)), known))]


def means_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean figures over instances, by candidate."""
    figures = [objective.figure for objective in OBJECTIVES.values()]
    return rows.astype(dict.fromkeys(figures, "f8")).groupby("candidate", sort=False)[figures].mean()


def meets(config: TuningConfig, means: pd.Series) -> bool:
    """Whether the means of a candidate meet the constraints."""
    return all(
        excess(name, bound, float(means[OBJECTIVES[name].figure])) <= 0 for name, bound in config.constraints.items()
    )

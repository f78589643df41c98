"""Candidates of a study: the best k trials, their runs on a panel, and the winner by these runs.

Runs are kept in a ledger, so that a tuning can resume.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from servegym.evaluation.identity import versions
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.panels.panel import Panel
from servegym.evaluation.running import Runner
from servegym.tuners.search.space import Settings
from servegym.tuners.studies.config import FIGURES, OBJECTIVES, Objective, TuningConfig
from servegym.tuners.studies.instances import Job, instances_of, run_job
from servegym.tuners.studies.search import SETTINGS, Search, excess

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import FrozenTrial

Entry = TypeVar("Entry")
DEFAULTS, WINNER, SCHEDULE = "defaults", "winner", "schedule"
Progress = Callable[[str, int, int], None]  # (what, done, in all)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Policies to be run. label: "defaults", or "trial 37". settings: by role; None: the policies as named."""

    label: str
    settings: Settings | None = None

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True)


Pair = tuple[Candidate, int]  # a candidate, and the index of an instance of a panel


def run_candidates(
    search: Search, panel: Panel, pairs: Iterable[Pair], ledger: Path, runner: Runner, progress: Progress
) -> pd.DataFrame:
    """Run each pair; returns a row a pair: candidate, trace, device, load, seed, and the figures of the run.

    ledger: file in which each run is kept at once; runs that it has are not repeated. Raises ExperimentError for a
    ledger of other runs.
    """
    import pandas as pd

    instances = instances_of(panel)
    wanted = list(pairs)
    policies = {role: policy.to_json() for role, policy in search.policies.items()}
    identity = {**instances.identity(search.policies), "policies": policies, "versions": versions()}

    def problem(row: Row) -> str | None:
        bad = [name for name in ("key", "index", *FIGURES) if name not in row]
        return f"there is no {bad[0]}" if bad else None

    items = {
        (one.key, index): (one.key, Job(panel, index, search.policies_with(one.settings))) for one, index in wanted
    }
    rows = kept_rows(
        Ledger(ledger, identity, problem), items, lambda row: (row["key"], row["index"]), _row,
        lambda done, all_of_them: progress(panel.name, done, all_of_them), runner,
    )  # fmt: skip
    known = dict(zip(items, rows, strict=True))
    return pd.DataFrame(
        [
            {"candidate": one.label, **instances.all[index]._asdict()}
            | {name: known[one.key, index][name] for name in FIGURES}
            for one, index in wanted
        ]
    )


def _row(item: tuple[str, Job]) -> Row:
    key, job = item
    return {"key": key, "index": job.instance, **run_job(job)}


def on_all(candidates: Iterable[Candidate], panel: Panel) -> list[Pair]:
    """Pair every candidate with every instance."""
    return [(candidate, index) for candidate in candidates for index in range(len(instances_of(panel)))]


def best_trials(search: Search, trials: list[FrozenTrial]) -> list[Candidate]:
    """Choose the best k trials that met the constraints, different from each other and from the defaults; best first.

    trials: in the order of their numbers, as `work` returns them. Of several objectives those that no other trial
    exceeds in all come first; the first objective decides among them.
    """
    config = search.config
    usable = [
        (number, trial) for number, trial in enumerate(trials)
        if trial.state.name == "COMPLETE" and all(value <= 0 for value in trial.constraints.values())
    ]  # fmt: skip
    if len(config.objectives) > 1:
        scores = [trial.values for _, trial in usable]  # noqa: PD011 (a trial of Optuna)
        usable = list(
            itertools.compress(usable, pareto_front(scores, [OBJECTIVES[name] for name in config.objectives]))
        )
    sign = OBJECTIVES[config.objectives[0]].sign
    usable.sort(key=lambda pair: (-sign * float(pair[1].values[0]), pair[0]))  # noqa: PD011
    found: dict[str, Candidate] = {}
    for number, trial in usable:
        candidate = Candidate(f"trial {number}", trial.user_attrs[SETTINGS])
        if number > 0:  # trial 0 is the defaults, which are validated anyway
            found.setdefault(candidate.key, candidate)
    return list(found.values())[: config.top_k]


def pareto_front(scores: Sequence[Sequence[float]] | np.ndarray, objectives: Sequence[Objective]) -> np.ndarray:
    """Find the rows of scores[n, objectives] that no other row equals in all and beats in one objective: bool[n]."""
    signs = [objective.sign for objective in objectives]
    signed = np.array(scores, "f8").reshape(-1, len(objectives)) * signs
    as_good: np.ndarray = np.all(signed[None] >= signed[:, None], axis=2)
    better: np.ndarray = np.any(signed[None] > signed[:, None], axis=2)
    beaten: np.ndarray = np.any(as_good & better, axis=1)
    return ~beaten


def choose(config: TuningConfig, rows: pd.DataFrame) -> str:
    """Choose the winner's label: the best mean of the first objective of those that meet the constraints.

    The defaults win a tie; and where no candidate meets the constraints, whether they do or not.
    """
    means = means_of(rows)
    score = OBJECTIVES[config.objectives[0]].sign * means[OBJECTIVES[config.objectives[0]].figure]
    allowed = {label: meets(config, means.loc[label]) for label in means.index}
    best, best_score = DEFAULTS, score[DEFAULTS] if allowed[DEFAULTS] else -math.inf
    for label in means.index:
        if label != DEFAULTS and allowed[label] and score[label] > best_score:
            best, best_score = label, score[label]
    return str(best)


def choose_by_load(config: TuningConfig, rows: pd.DataFrame) -> dict[float, str]:
    """Choose for each load the best candidate there, of those that meet the constraints over all loads.

    If none does, the defaults are chosen.
    """
    means = means_of(rows)
    allowed = [label for label in means.index if label == DEFAULTS or meets(config, means.loc[label])]
    of_allowed = rows[rows["candidate"].isin(allowed)]
    unconstrained = config.replaced(constraints={})
    return {float(load): choose(unconstrained, at_load) for load, at_load in of_allowed.groupby("load", sort=True)}


def nearest(schedule: Mapping[float, Entry], load: float) -> Entry:
    """Look up a load in a schedule: the entry of the nearest load, by ratio."""
    return schedule[min(schedule, key=lambda known: (abs(math.log(known / load)), known))]


def means_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the figures over instances, by candidate."""
    return rows.astype(dict.fromkeys(FIGURES, "f8")).groupby("candidate", sort=False)[list(FIGURES)].mean()


def meets(config: TuningConfig, means: pd.Series) -> bool:
    """Return whether the means of a candidate meet the constraints."""
    return all(
        excess(name, bound, float(means[OBJECTIVES[name].figure])) <= 0 for name, bound in config.constraints.items()
    )

"""The tables of a study: its trials, the runs of each, the parameters, and the test results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from servegym.evaluation.panels.statistics import bootstrap, difference, mean
from servegym.evaluation.panels.tables import by_cell
from servegym.tuners.search.space import Settings
from servegym.tuners.search.workers import worker_of
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.config import FIGURES
from servegym.tuners.studies.search import OUTCOMES, SETTINGS, Search

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import FrozenTrial

ALL_LOADS = "all"


def trials_table(search: Search, trials: list[FrozenTrial]) -> pd.DataFrame:
    """Make a row a trial: trial, state, the mean of each figure of `FIGURES` over the instances it ran, their number,
    feasible, worker, and each parameter as "role.parameter"."""
    import pandas as pd

    rows = []
    for number, trial in enumerate(trials):
        outcomes = trial.user_attrs[OUTCOMES]
        rows.append(
            {
                "trial": number,
                "state": trial.state.name.lower(),
                **{name: _mean(outcomes[name]) for name in FIGURES},
                "instances": sum(value is not None for value in outcomes["tdg_ratio"]),
                "feasible": all(value <= 0 for value in trial.constraints.values()),
                "worker": worker_of(trial),
                **{
                    f"{role}.{name}": value
                    for role, values in trial.user_attrs[SETTINGS].items()
                    for name, value in values.items()
                },
            }
        )
    return pd.DataFrame(rows)


def runs_table(search: Search, trials: list[FrozenTrial]) -> pd.DataFrame:
    """Make a row a run of each trial: trial, trace, device, load, seed, and its figures."""
    import pandas as pd

    rows = []
    for number, trial in enumerate(trials):
        outcomes = trial.user_attrs[OUTCOMES]
        for index, instance in enumerate(search.instances.all):
            if outcomes["tdg_ratio"][index] is not None:
                rows.append({"trial": number, **instance._asdict()} | {name: outcomes[name][index] for name in FIGURES})
    return pd.DataFrame(rows)


def parameters_table(search: Search, winner: Settings | None, by_load: Mapping[float, Settings | None]) -> pd.DataFrame:
    """Make a row a parameter: its default, the winner's value, what was searched, and the best value at each load."""
    import pandas as pd

    defaults = search.space.settings(search.defaults)
    rows = []
    for variable in search.space.variables:
        low, high = variable.low, variable.high
        if variable.share_of is not None:
            low, high = variable.parameter_low, variable.parameter_high
        for role, parameter in variable.members:
            default = defaults[role][parameter]
            rows.append(
                {
                    "parameter": f"{role}.{parameter}",
                    "variable": variable.name,
                    "unit": "" if variable.share_of else variable.unit,
                    "default": default,
                    "winner": default if winner is None else winner[role][parameter],
                    "low": None if variable.choices else low,
                    "high": None if variable.choices else high,
                    "log": variable.log,
                    "choices": "|".join(variable.choices),
                    **{
                        f"at_load_{load:g}": default if settings is None else settings[role][parameter]
                        for load, settings in by_load.items()
                    },
                    "source": variable.source,
                }
            )
    return pd.DataFrame(rows)


def differences_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the means and paired differences of a test, overall and by load.

    rows: of candidates "defaults", "winner" and "schedule". A row of the table: load ("all"), figure, candidate, mean,
    low, high, against, difference, difference_low, difference_high; winner and schedule are compared with the
    defaults, and the schedule with the winner too. Intervals: 95 %, bootstrap stratified by cell
    (`evaluation.panels.statistics`).
    """
    import pandas as pd

    labels = [label for label in (DEFAULTS, WINNER, SCHEDULE) if (rows["candidate"] == label).any()]
    pairs = [(WINNER, DEFAULTS), (SCHEDULE, DEFAULTS), (SCHEDULE, WINNER)]
    found = []
    for load in [ALL_LOADS, *rows["load"].unique()]:
        at_load = rows if load == ALL_LOADS else rows[rows["load"] == load]
        for figure in FIGURES:
            scores = {label: by_cell(at_load[at_load["candidate"] == label], figure) for label in labels}
            if any(np.isnan(one).any() for one in scores.values()):
                continue  # runs of one priority have none
            for label in labels:
                interval = bootstrap(mean, scores[label])
                row = {"load": load, "figure": figure, "candidate": label, "mean": interval.mean,
                       "low": interval.low, "high": interval.high, "runs": scores[label].size}  # fmt: skip
                against = [other for one, other in pairs if one == label and other in scores]
                if not against:
                    found.append(row)
                for other in against:
                    change = bootstrap(difference, scores[label], scores[other])
                    found.append(
                        row | {"against": other, "difference": change.mean, "difference_low": change.low,
                               "difference_high": change.high}
                    )  # fmt: skip
    return pd.DataFrame(found)


def known_figures(row: pd.Series) -> dict[str, float | None]:
    """Take the figures of a row; None for those that it has not."""
    return {name: float(row[name]) if row[name] == row[name] and row[name] is not None else None for name in FIGURES}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

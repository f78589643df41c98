"""Conclusions from the tables of a study: whether the optimum holds, which parameters matter, and how precisely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from servegym.evaluation.intervals import verdict
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.config import Objective
from servegym.tuners.studies.results import StudyResults, of_candidate, paired

if TYPE_CHECKING:
    import pandas as pd

NEARLY_ALL = 0.99  # a share from which on there is hardly room to improve


class Optimism(NamedTuple):
    """Lead of the best trial over the defaults: on the panel on which it was chosen, and on fresh seeds.

    validation: None if the trial was not run again.
    """

    trial: int
    panel: float
    validation: float | None


def no_room(objective: Objective, defaults: float) -> str | None:
    """Make a note for defaults that already reach nearly all of a share; else None."""
    if objective.unit or not objective.larger_is_better or defaults < NEARLY_ALL:
        return None
    return (
        f"There is no room: the defaults reach {defaults:.4f} of 1 on the test, so no setting can be worth more than "
        f"{1 - defaults:.4f}. Tune where more is lost, such as at a higher load."
    )


def sliced(results: StudyResults) -> pd.DataFrame:
    """Make a row for each value of each parameter that was tried in the winner.

    Columns: parameter, value; difference, low, high: to the winner on the same runs of the
    validation panel, with its 95 % interval.
    """
    import pandas as pd

    if results.slices.empty:
        return pd.DataFrame(columns=["parameter", "value", "difference", "low", "high"])
    winner, figure = of_candidate(results.validation, results.winner), results.objective.figure
    rows = []
    for (parameter, value), group in results.slices.groupby(["parameter", "value"], sort=False):
        change = paired(group, winner, figure)
        rows.append(
            {"parameter": parameter, "value": value, "difference": change.mean, "low": change.low, "high": change.high}
        )
    return pd.DataFrame(rows)


def indifferent(results: StudyResults) -> dict[str, str]:
    """Name, for each parameter, the tried values whose difference to the winner's is not significant."""
    table, found = sliced(results), {}
    better_up = results.objective.larger_is_better
    for parameter, rows in table.groupby("parameter", sort=False):
        held = rows[rows["high"] >= 0] if better_up else rows[rows["low"] <= 0]
        values = [_number(value) for value in held["value"]]
        found[str(parameter)] = (
            f"all {len(rows)} values tried" if len(held) == len(rows) else ", ".join(values) or "none of those tried"
        )
    return found


def optimism(results: StudyResults) -> Optimism | None:
    """Compare the best trial with the defaults, on the panel and on fresh seeds; None if no trial is complete."""
    best = results.document["trials"]["best"]
    if best is None:
        return None
    figure, trials = results.objective.figure, results.trials.set_index("trial")[results.objective.figure]
    validation = results.validation[results.validation["candidate"] == f"trial {best}"]
    again = None
    if best == 0:
        again = 0.0
    elif len(validation):
        again = float(validation[figure].mean() - of_candidate(results.validation)[figure].mean())
    return Optimism(int(best), float(trials.loc[best] - trials.loc[0]), again)


def conclusions(results: StudyResults) -> list[str]:
    """Write the conclusions of a study as sentences."""
    up, found = results.objective.larger_is_better, []
    if results.kept_defaults:
        found.append("No trial was better than the defaults on fresh seeds: the defaults stay.")
    else:
        change = results.tested(WINNER, DEFAULTS)
        found.append(
            f"Winner against defaults on the test: {change.in_words()}, {verdict(change, up)} "
            f"({results.test_mean(DEFAULTS):.4f} to {results.test_mean(WINNER):.4f})."
        )
    if room := no_room(results.objective, results.test_mean(DEFAULTS)):
        found.append(room)
    schedule = results.tested(SCHEDULE, WINNER)
    found.append(
        f"Parameters of their own for each load against the one point: {schedule.in_words()}, {verdict(schedule, up)}."
    )
    luck = optimism(results)
    if luck is not None and luck.trial > 0 and luck.validation is not None:
        found.append(
            f"The best trial ({luck.trial}) was ahead of the defaults by {luck.panel:+.4f} on the panel it was chosen "
            f"on, and by {luck.validation:+.4f} on fresh seeds."
        )
    if matters := results.document.get("importance"):
        found.append(
            "What the score depends on (PED-ANOVA): "
            + ", ".join(f"{name} {share:.0%}" for name, share in matters.items()) + "."
        )  # fmt: skip
    return found


def parameters_of(results: StudyResults) -> list[dict[str, str]]:
    """Make a row a parameter for reports: default, winner, values that are as good, and the best at each load."""
    held = indifferent(results)
    rows = []
    for row in results.parameters.to_dict("records"):
        unit = f", {row['unit']}" if isinstance(row["unit"], str) and row["unit"] else ""
        rows.append(
            {
                "parameter": f"{row['parameter']}{unit}",
                "default": _number(row["default"]),
                "winner": _number(row["winner"]),
                "not significantly different": held.get(row["parameter"], "tied to another"),
                **{
                    f"best at load {name.removeprefix('at_load_')}": _number(row[name])
                    for name in results.parameters.columns
                    if name.startswith("at_load_")
                },
            }
        )
    return rows


def _number(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)

"""The page of the study: means under each condition, what is lost, where the order changes, and the picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.degradation.conditions import (
    ATTAINMENT,
    CONDITIONS,
    DEFAULT,
    DRIFT,
    ESTIMATOR,
    GAIN,
    LENGTHS,
    NOISE,
    NOTHING,
    POLICIES,
    TDG,
    TUNED,
    Condition,
    Run,
    applies,
)  # fmt: skip
from servegym.evaluation.intervals import Interval
from servegym.evaluation.ledger import Row
from servegym.evaluation.markdown import table
from servegym.evaluation.panels.statistics import bootstrap, difference, mean

DOTS_PER_INCH = 150
AXES = {
    NOISE: "noise of an iteration's time",
    DRIFT: "slower at the last arrival by",
    ESTIMATOR: "estimator, times the true one",
    LENGTHS: "lengths, times the mean",
}
UNSPOILED = {NOISE: 0.0, DRIFT: 0.0, ESTIMATOR: 1.0}  # the level at which nothing is wrong
STYLES = {  # legible in grey: by marker and line, not by colour
    policy: {"color": color, "marker": marker, "linestyle": line}
    for policy, color, marker, line in zip(
        POLICIES, ("black", "0.3", "0.45", "0.55", "0.7"), "os^Dv", ("-", "--", "-.", ":", "-"), strict=True
    )
}
WRONG = (0.7, 1.5)  # the estimators of two hypotheses
MODEST = {NOISE: (0.05, 0.1, 0.2), DRIFT: (0.1, 0.25), ESTIMATOR: (0.85, 0.95, 1.05, 1.2)}
CHEAP = 0.01


class Scores(NamedTuple):
    """Figures of all runs."""

    rows: Mapping[Run, Row]

    def of(self, policy: str, condition: Condition, figure: str = TDG) -> np.ndarray:
        """float64[cells, seeds]"""
        by_cell: dict[object, list[float]] = {}
        for run, row in self.rows.items():
            if (run.policy, run.condition) == (policy, condition):
                by_cell.setdefault(run.cell, []).append(row[figure])
        return np.array(list(by_cell.values()))

    def mean(self, policy: str, condition: Condition, figure: str = TDG) -> Interval:
        return bootstrap(mean, self.of(policy, condition, figure))

    def lost(self, policy: str, condition: Condition) -> np.ndarray:
        """float64[cells, seeds]: TDG ratio where nothing is wrong, less that."""
        return self.of(policy, NOTHING) - self.of(policy, condition)

    def less(self, one: str, other: str, condition: Condition, figure: str = TDG) -> Interval:
        """By how much a policy is above another, on the same requests."""
        return bootstrap(difference, self.of(one, condition, figure), self.of(other, condition, figure))


def refuted(is_refuted: bool) -> str:
    """Return the verdict of a hypothesis."""
    return "**refuted**" if is_refuted else "not refuted"


def hypotheses(scores: Scores) -> list[list[str]]:
    """[number, what is asked, at which condition, measured, refuted or not]"""
    lines = []
    for condition in (Condition(what, level) for what, levels in MODEST.items() for level in levels):
        for other in (TUNED, DEFAULT):
            interval = scores.less(GAIN, other, condition)
            lines.append(["1", f"above {other}", name(condition), interval.in_words(), refuted(interval.high < 0)])
    for level in WRONG:
        condition, corrected = Condition(ESTIMATOR, level), Condition(ESTIMATOR, level, True)
        more = bootstrap(difference, scores.lost(GAIN, condition), scores.lost(TUNED, condition))
        lines.append(["2", f"loses more than {TUNED}", name(condition), more.in_words(), refuted(more.high < 0)])
        left = bootstrap(difference, scores.lost(GAIN, corrected), scores.lost(GAIN, condition) / 2)
        lines.append(
            ["3", "left of the loss, less half of it", name(corrected), left.in_words(), refuted(left.low > 0)]
        )
    for level in (0.33, 3.0):
        lost = bootstrap(mean, scores.lost(GAIN, Condition(LENGTHS, level)))
        lines.append(
            ["4", f"lost, at most {CHEAP}", f"{LENGTHS} {level:g}", lost.in_words(), refuted(lost.low > CHEAP)]
        )
    return lines


def name(condition: Condition) -> str:
    if condition == NOTHING:
        return condition.what
    return f"{condition.what} {condition.level:g}" + (", corrected" if condition.corrected else "")


def means_table(scores: Scores) -> str:
    """TDG ratio and SLO attainment of each policy under each condition; half of the interval of the TDG ratio."""
    lines = []
    for condition in CONDITIONS:
        cells = []
        for policy in POLICIES:
            if not applies(policy, condition):
                cells.append("")
                continue
            gained, met = (scores.mean(policy, condition, figure) for figure in (TDG, ATTAINMENT))
            cells.append(f"{gained.text()}, {met.mean:.3f}")
        lines.append([name(condition), *cells])
    return table(["", *POLICIES], lines)


def order_table(scores: Scores) -> str:
    """By how much expected-gain is above slide-batching under each condition."""
    lines = []
    for condition in CONDITIONS:
        if condition.what == LENGTHS:
            continue
        cells = []
        for figure in (TDG, ATTAINMENT):
            for other in (TUNED, DEFAULT):
                interval = scores.less(GAIN, other, condition, figure)
                cells.append(f"**{interval.in_words()}**" if interval.high < 0 else interval.in_words())
        lines.append([name(condition), *cells])
    columns = [f"{figure} less {other}'s" for figure in ("TDG ratio", "SLO attainment") for other in (TUNED, DEFAULT)]
    return table(["", *columns], lines)


def page(rows: Mapping[Run, Row], words: str, measured_by: str, picture: str) -> str:
    """The page in Markdown. measured_by: the command and what it ran; picture: its path from the page."""
    scores = Scores(rows)
    return "\n".join(
        [
            "# Degradation: what is wrong, and what it costs\n",
            words,
            "## What was measured\n",
            f"{measured_by} Means over all cells, and 95 % intervals over seeds.\n",
            f"![TDG ratio and SLO attainment of each scheduler, the more is wrong]({picture})\n",
            "Hollow marks: with the estimator corrected online.\n",
            table(["", "asked", "at", "measured", ""], hypotheses(scores)),
            "TDG ratio ± half of its interval, and SLO attainment:\n",
            means_table(scores),
            f"By how much `{GAIN}` is above slide-batching, on the same requests; bold: below it, by an interval clear "
            "of 0.\n",
            order_table(scores),
        ]
    )


def draw(rows: Mapping[Run, Row], path: Path) -> None:
    """A column for each thing that is wrong; TDG ratio above, SLO attainment below."""
    scores = Scores(rows)
    figure = Figure(figsize=(12, 6), layout="constrained")
    grid = figure.subplots(2, len(AXES), sharey="row", squeeze=False)
    for column, (what, label) in enumerate(AXES.items()):
        for axes, of, title in zip(grid[:, column], (TDG, ATTAINMENT), ("TDG ratio", "SLO attainment"), strict=True):
            for policy, style in STYLES.items():
                plain = [one for one in CONDITIONS if one.what == what and not one.corrected and applies(policy, one)]
                points = [(one.level, scores.mean(policy, one, of).mean) for one in plain]
                if what in UNSPOILED:
                    points = sorted([*points, (UNSPOILED[what], scores.mean(policy, NOTHING, of).mean)])
                if points:
                    axes.plot(*zip(*points, strict=True), markersize=5, linewidth=1.3, label=policy, **style)
                for one in (one for one in CONDITIONS if one.what == what and one.corrected):
                    axes.plot(
                        one.level, scores.mean(policy, one, of).mean, marker=style["marker"], markerfacecolor="white",
                        color=style["color"], markersize=6, linestyle="none",
                    )  # fmt: skip
            if what in (ESTIMATOR, LENGTHS):
                axes.set_xscale("log")
                levels: Sequence[float] = sorted({one.level for one in CONDITIONS if one.what == what})
                axes.set_xticks(levels, [f"{level:g}" for level in levels], fontsize=8)
                axes.minorticks_off()
            axes.set_xlabel(label)
            if column == 0:
                axes.set_ylabel(title)
    grid[0, 0].legend(fontsize=8, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)

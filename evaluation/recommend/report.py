"""One HTML page about a recommendation, and its pictures: how near the simulation comes, how many engines it takes, and
what each setup gains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from servegym.evaluation.plots import COLOURS, DASHES, MARKERS, dress
from servegym.evaluation.recommend.judging import DEFAULT, DIFFERENCE, RECOMMENDED, SHARE
from servegym.evaluation.recommend.matching import Match
from servegym.evaluation.recommend.recommending import OfDevice, Recommendation
from servegym.evaluation.recommend.words import conclusions, document, not_fitted, share_title, table_rows, title
from servegym.evaluation.reports import page
from servegym.evaluation.reports.notes import profile_notes
from servegym.evaluation.reports.plots import HEIGHT, WIDTH
from servegym.evaluation.targets import Target

GREY = "#7F7F7F"


def plot_match(match: Match) -> Figure:
    """Errors of the simulation, by figure: with the profile as it is, and after fitting."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(match.figures))
    series = {"profile as it is": False, **({"fitted to the first half": True} if match.is_fitted else {})}
    width = 0.8 / len(series)
    for number, (name, fitted) in enumerate(series.items()):
        errors = [one.error_percent(fitted) for one in match.figures]
        bars = axes.bar(places + width * (number - (len(series) - 1) / 2), errors, 0.92 * width, label=name)
        for bar in bars:
            bar.set(facecolor=COLOURS[0] if fitted else "none", edgecolor=COLOURS[0] if fitted else GREY, linewidth=1.2)
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.set_xticks(places, [one.name for one in match.figures])
    axes.set_ylabel("simulated above measured, %")
    if len(series) > 1:
        axes.legend(frameon=False)
    dress(axes)
    return figure


def plot_curve(of: OfDevice, target: Target) -> Figure:
    """The share served as the target says, against the number of engines."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for number, (role, rows) in enumerate(of.curve.groupby("role", sort=False)):
        axes.errorbar(
            rows["engines"] + 0.04 * number, rows[SHARE], yerr=_bars(rows, SHARE, 0.0, 1.0), label=str(role),
            color=COLOURS[number], marker=MARKERS[number], linestyle=DASHES[number], capsize=3,
        )  # fmt: skip
    axes.axhline(1 - target.most_failed, color=GREY, linestyle=":", linewidth=1.2, label="target")
    if of.least is not None and of.least > of.curve["engines"].min():
        axes.axvline(of.least, color=GREY, linestyle="--", linewidth=1.2, label="no policy does with fewer")
    axes.set_xlabel(f"engines of {of.device}")
    axes.set_ylabel(share_title(target))
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="lower right")
    dress(axes)
    return figure


def plot_setups(of: OfDevice, target: Target) -> Figure:
    """The difference of each setup to the default with the same number of engines, with its interval."""
    rows = of.table[~of.table["role"].str.startswith(DEFAULT)]
    figure = Figure(figsize=(WIDTH, 1.0 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))
    chosen = (rows["role"] == RECOMMENDED).to_numpy()
    for some, colour, marker in ((chosen, COLOURS[0], "D"), (~chosen, GREY, "o")):
        if some.any():
            axes.errorbar(
                rows[DIFFERENCE][some], places[some], xerr=_bars(rows[some], DIFFERENCE), color=colour, marker=marker,
                linestyle="none", capsize=3,
            )  # fmt: skip
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_yticks(places, [f"{row.label}, {row.engines} engines" for row in rows.itertuples()])
    axes.invert_yaxis()
    axes.set_xlabel(f"{share_title(target)} above the default's with as many engines")
    dress(axes, "x")
    return figure


def _bars(rows: pd.DataFrame, name: str, least: float = -np.inf, most: float = np.inf) -> list[pd.Series]:
    """Distances of the ends of intervals from their means, clipped to bounds; 0 without an interval."""
    mean = rows[name]
    low, high = (rows[f"{name}_ci_{end}"].fillna(mean).clip(least, most) for end in ("low", "high"))
    return [(mean - low).clip(lower=0), (high - mean).clip(lower=0)]


MATCH = (
    "How far the simulation of the recording's second half is from what was measured: outlined with the profile as it "
    "is, filled with what was fitted to the first half."
)
CURVE = (
    "How many of the requests are served as asked for, by the number of engines, on windows that nothing was chosen "
    "by; bars are 95 % intervals."
)
SETUPS = (
    "What each setup adds to the default with as many engines, window by window; where an interval reaches over 0 the "
    "two cannot be told apart."
)
NOTES = (
    "Each window begins with empty engines, and the requests of its first tenth are not judged; caches of prefixes are "
    "cold at its beginning.",
    "Routers and engine settings were tried alone, then the best of them together, by successive halving: two that are "
    "good only together, and what is poor in the busiest window and good elsewhere, can be missed.",
)


def recommend_report(found: Recommendation, path: str | Path) -> Path:
    """Write the page and return its path."""
    best, target = found.best, found.question.target
    tables = (
        page.section(of.device, page.table(pd.DataFrame(table_rows(of, target)), "whole")) for of in found.of_devices
    )
    body = [
        page.section("In short", page.bullets(conclusions(found))),
        page.section("How many engines", page.drawing(plot_curve(best, target), "engines", CURVE)),
        *tables,
        *(
            [page.section("What each setup adds", page.drawing(plot_setups(best, target), "setups", SETUPS))]
            if len(best.table) > 1 else []
        ),
        _match_section(found),
        page.section("What these figures are not", page.bullets([*NOTES, *profile_notes(best.profile)])),
        page.section("What was asked", page.facts(_asked(found))),
    ]  # fmt: skip
    Path(path).write_text(page.page(title(found), body), encoding="utf-8")
    return Path(path)


def _match_section(found: Recommendation) -> str:
    heading = "How near the simulation comes"
    if found.match is None:
        return page.section(heading, page.paragraph(not_fitted(found.recording)))
    return page.section(
        heading, page.bullets(found.match.lines()), page.drawing(plot_match(found.match), "match", MATCH)
    )


def _asked(found: Recommendation) -> dict[str, object]:
    return {name: value for name, value in document(found).items() if name not in ("devices", "match")}

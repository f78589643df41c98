"""One HTML page about a recommendation."""

from __future__ import annotations

from pathlib import Path

from servegym.evaluation.recommend.documents import document
from servegym.evaluation.recommend.pictures import plot_curve, plot_match, plot_setups
from servegym.evaluation.recommend.recommending import Recommendation
from servegym.evaluation.recommend.rows import table_rows
from servegym.evaluation.recommend.words import NOT_MEASURED, conclusions, title
from servegym.evaluation.reports import page
from servegym.evaluation.reports.notes import profile_notes
from servegym.evaluation.reports.svg import inline_svg

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
    import pandas as pd

    best, target = found.best, found.question.target
    tables = (
        page.section(of.device, page.table(pd.DataFrame(table_rows(of, target)), "whole")) for of in found.of_devices
    )
    body = [
        page.section("In short", page.bullets(conclusions(found))),
        page.section(
            "How many engines", page.figure(inline_svg(plot_curve(best, target), "engines", CURVE), CURVE)
        ),
        *tables,
        *(
            [page.section("What each setup adds",
                          page.figure(inline_svg(plot_setups(best, target), "setups", SETUPS), SETUPS))]
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
        return page.section(heading, page.paragraph(NOT_MEASURED))
    picture = inline_svg(plot_match(found.match), "match", MATCH)
    return page.section(heading, page.bullets(found.match.lines()), page.figure(picture, MATCH))


def _asked(found: Recommendation) -> dict[str, object]:
    return {name: value for name, value in document(found).items() if name not in ("devices", "match")}

"""One HTML page about a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.evaluation.intervals import verdict
from servegym.evaluation.reports import page
from servegym.scenarios.values import load_title
from servegym.tuners.studies.analysis import conclusions, optimism, parameters_of
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.plots import plot_front, plot_loads, plot_slices
from servegym.tuners.studies.results import StudyResults

REPORT_FILE = "report.html"
LOADS_CAPTION = (
    "On the test panel, whose seeds no trial and no choice saw. An interval that does not touch the line is clear of "
    "chance over seeds."
)
SLICES_CAPTION = (
    "Circles: complete trials; the worst half may be below the picture. Line: the winner with this one parameter "
    "changed. Where the band holds the winner's height, the exact value does not matter."
)
FRONT_CAPTION = "Every complete trial. Along the line one objective can only be had for some of the other."


def study_report(results: StudyResults, folder: Path) -> list[Path]:
    """Write the page about a study into its folder, and its pictures; returns the files."""
    loads, slices = plot_loads(results, folder / "loads.png"), plot_slices(results, folder / "slices.png")
    pictures = [loads, slices]
    front: list[str] = []
    if len(results.objectives) > 1:
        pictures.append(plot_front(results, folder / "front.png"))
        front = [page.image(pictures[-1], FRONT_CAPTION)]
    body = [
        page.paragraph(what_ran(results.config), "lead"),
        *(page.paragraph(text) for text in [str(results.document["description"])] if text),
        page.section(
            "In short",
            page.bullets(conclusions(results)),
            page.image(loads, LOADS_CAPTION),
            *front,
        ),
        page.section("Parameters", page.table(pd.DataFrame(parameters_of(results)), "facts")),
        page.section("How sensitive", page.image(slices, SLICES_CAPTION)),
        page.section("The test", *_test(results)),
        page.section("What these figures are not", page.bullets(_limits(results))),
        page.section("What was run", page.facts(_facts(results))),
    ]
    path = folder / REPORT_FILE
    path.write_text(page.page(f"{results.document['tuning']}: {results.name}", body), encoding="utf-8")
    return [*pictures, path]


def what_ran(config: Mapping[str, Any]) -> str:
    """Describe the panels that ran: what was tuned, validated and tested on."""
    panels = {"Tuned on": "panel", "Validated on": "validation", "Tested on": "test"}
    return ". ".join(f"{words} {_served(config[role])}" for words, role in panels.items()) + "."


def _served(panel: Mapping[str, Any]) -> str:
    loads, seeds = ", ".join(load_title(float(load)) for load in panel["load"]), panel["seeds"]
    return (
        f"{', '.join(panel['trace'])} at load {loads}, {', '.join(panel['device'])}, {seeds} seed{'s' * (seeds > 1)} "
        f"from {panel['first_seed']:,} on"
    )


def _test(results: StudyResults) -> Iterator[str]:
    rows = []
    up = results.objective.larger_is_better
    for load in ["all", *results.loads]:
        for candidate, against in ((WINNER, DEFAULTS), (SCHEDULE, DEFAULTS), (SCHEDULE, WINNER)):
            change = results.tested(candidate, against, load)
            rows.append(
                {
                    "load": load if load == "all" else load_title(float(load)),
                    "": f"{candidate} less {against}",
                    "difference, 95 % interval": change.in_words(),
                    "verdict": verdict(change, up),
                }
            )
    yield page.paragraph(f"Mean {results.objective.doc}, paired by request, trace, load and seed.")
    yield page.table(pd.DataFrame(rows), "facts")


def _limits(results: StudyResults) -> Iterator[str]:
    config = results.config
    yield (
        f"They are of {', '.join(config['test']['device'])}, of traces {', '.join(config['test']['trace'])} with "
        f"SLOs {config['test']['slo']}, in simulation; elsewhere the best point may be another."
    )
    yield "Intervals are over seeds, on these traces and loads; other traces may differ by more."
    luck = optimism(results)
    if luck is not None:
        yield "The score of the best trial on its own panel is the largest of many, so it is flattered by luck."


def _facts(results: StudyResults) -> dict[str, object]:
    document = results.document
    return {
        "winner": document["winner"]["labels"],
        "trials": document["trials"],
        "seeds": document["seeds"],
        "sampler": document["config"]["sampler"],
        "pruner": document["config"]["pruner"],
        "panel": document["config"]["panel"],
        "validation": document["config"]["validation"],
        "test": document["config"]["test"],
        "versions": document["versions"],
    }

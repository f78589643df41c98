"""The options of an evaluation. Those of a panel mean what they do elsewhere; without them the panel's values hold."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options

PANELS = "the panel's"
JUDGED = (
    "Two or more: {kind}s to be judged, the first of which is the baseline. One: the {kind} that others are judged "
    "with. learned:PATH names a learned one."
)

Artifacts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARTIFACT]...",
        help="Files of `servegym export` or `servegym train`, or names of policies that ship: the policies in each are "
        "judged as they serve together.",
        show_default=False,
    ),
]
PanelFile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.yaml",
        help="The cases: traces, devices, loads, SLOs, seeds. The options below replace what it says.",
        show_default="held_out, or held_out_routers",
        rich_help_panel=options.ON_WHAT,
    ),
]
AllowSeen = Annotated[
    bool,
    typer.Option(
        "--allow-seen",
        help="Mark cases that a learned policy was trained on, instead of refusing them.",
        rich_help_panel=options.ON_WHAT,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar=options.SCHEDULER_METAVAR,
        help="The judged policy to take differences to.",
        show_default="the first",
        rich_help_panel=options.WHAT,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Seeds of each cell; no two cells share one.",
        show_default=PANELS,
        rich_help_panel=options.HOW_MUCH,
    ),
]
FirstSeed = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="S",
        help="The first of all seeds. Training draws from those below 1,000,000.",
        show_default=PANELS,
        rich_help_panel=options.HOW_MUCH,
    ),
]
Bound = Annotated[
    bool,
    typer.Option(
        "--bound",
        help="Also hold every run against what no policy can exceed. It takes seconds to a minute for each cell "
        "and seed, and runs of at most 2000 requests.",
        rich_help_panel=options.HOW_MUCH,
    ),
]
Headroom = Annotated[
    bool,
    typer.Option(
        "--headroom",
        help="Also hold every run against the best that `servegym headroom` has found of its scenario, where its "
        "ledgers are kept (results/headroom, or headroom in --out).",
        rich_help_panel=options.HOW_MUCH,
    ),
]

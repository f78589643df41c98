"""The options of an evaluation. Those of a panel mean what they do elsewhere; without them the panel's values hold."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option

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
    option(
        "NAME|FILE.yaml",
        "The cases: traces, devices, loads, SLOs, seeds. The options below replace what it says.",
        options.ON_WHAT,
        show_default="held_out, or held_out_routers",
    ),
]
AllowSeen = Annotated[
    bool,
    flag("Mark cases that a learned policy was trained on, instead of refusing them.", options.ON_WHAT, "--allow-seen"),
]
Baseline = Annotated[
    str | None,
    option(
        options.SCHEDULER_METAVAR, "The judged policy to take differences to.", options.WHAT, show_default="the first"
    ),
]
Seeds = Annotated[
    int | None, option("N", "Seeds of each cell; no two cells share one.", options.HOW_MUCH, min=1, show_default=PANELS)
]
FirstSeed = Annotated[
    int | None,
    option(
        "S",
        "The first of all seeds. Training draws from those below 1,000,000.",
        options.HOW_MUCH,
        min=0,
        show_default=PANELS,
    ),
]
Bound = Annotated[
    bool,
    flag(
        "Also hold every run against what no policy can exceed. It takes seconds to a minute for each cell "
        "and seed, and runs of at most 2000 requests.",
        options.HOW_MUCH,
        "--bound",
    ),
]
Headroom = Annotated[
    bool,
    flag(
        "Also hold every run against the best that `servegym headroom` has found of its scenario, where its "
        "ledgers are kept (results/headroom, or headroom in --out).",
        options.HOW_MUCH,
        "--headroom",
    ),
]

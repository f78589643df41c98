"""The options of an evaluation. Options of a panel replace the panel's values."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option

PANELS = "the panel's"
JUDGED = (
    "A {kind}. Two or more are judged, the first being the baseline; a single one serves with the policies that are "
    "judged. learned:PATH names a learned one."
)

Artifacts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARTIFACT]...",
        help="Files of `servegym export` or `servegym train`, or names of policies that ship; the policies of each "
        "serve together.",
        show_default=False,
    ),
]
PanelFile = Annotated[
    str | None,
    option(
        "NAME|FILE.yaml",
        "The panel of cases: traces, devices, loads, SLOs, seeds. The options below replace its values.",
        options.ON_WHAT,
        show_default="held_out, or held_out_routers",
    ),
]
AllowSeen = Annotated[
    bool,
    flag("Mark cases on which a learned policy was trained, instead of refusing.", options.ON_WHAT, "--allow-seen"),
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
        "Also compare every run with a bound that no policy can exceed. Computing it takes seconds to a minute for "
        "each cell and seed, and needs runs of at most 2000 requests.",
        options.HOW_MUCH,
        "--bound",
    ),
]
Headroom = Annotated[
    bool,
    flag(
        "Also compare every run with the best run that `servegym headroom` found for its scenario, from its ledgers "
        "(results/headroom, or headroom in --out).",
        options.HOW_MUCH,
        "--headroom",
    ),
]

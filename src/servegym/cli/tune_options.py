"""The options of a tuning, beside those of a panel (evaluation_options.py); without them the file's values hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import options

FILE = "the file's"

Config = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE.yaml",
        help="A tuning that ships, or a file of your own.",
        show_default="default",
    ),
]
Studies = Annotated[
    list[str] | None,
    typer.Option(
        "--study",
        metavar="NAME",
        help="Only this study of the file. Repeatable.",
        show_default="all",
        rich_help_panel=options.WHAT,
    ),
]
HELP_TEXTS = {
    "scheduler": "Instead of the studies of the file, one study with this scheduler; key=value are held fixed, and are "
    "where it begins.",
    **{role: f"With this {what}." for role, what in {
        "decode_scheduler": "scheduler of decode engines", "router": "router", "scaler": "scaler",
    }.items()},
    "trace": "A family of generated requests, or a trace file, to tune and to test on (other seeds). Repeatable.",
}  # fmt: skip
Tune = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=LOW..HIGH],...",
        help="What is searched: a parameter of every policy that has it, or ROLE.NAME of one (scheduler, "
        "decode_scheduler, router, scaler); its range; of words NAME=WORD|WORD. Repeatable.",
        show_default="what papers and systems give a value for",
        rich_help_panel=options.WHAT,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What the tuning is called, in its folder and in a database, where each name has one panel and one space.",
        show_default=FILE,
        rich_help_panel=options.OUTPUT,
    ),
]
TestTraces = Annotated[
    list[str] | None,
    typer.Option(
        "--test-trace",
        metavar="NAME|FILE",
        help="What the winner is tested on. Repeatable.",
        show_default=FILE,
        rich_help_panel=options.ON_WHAT,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Seeds of each trace, device and load that trials run; validation and test use others.",
        show_default=FILE,
        rich_help_panel=options.HOW_MUCH,
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Trials of each study. The same command with more goes on.",
        show_default=FILE,
        rich_help_panel=options.HOW_MUCH,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        min=1,
        metavar="K",
        help="How many of the best trials are validated on fresh seeds; the best there wins.",
        show_default=FILE,
        rich_help_panel=options.HOW_MUCH,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, metavar="S", help="Seed of the sampler.", show_default=FILE, rich_help_panel=options.HOW_MUCH),
]
SEARCH = "How it is searched"
Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="tpe, gp, cmaes, nsga2, grid or random.",
        show_default="tpe",
        rich_help_panel=SEARCH,
    ),
]
Pruner = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="none, or wilcoxon: a trial ends when its runs are worse than those of the best by Wilcoxon's test.",
        show_default="none",
        rich_help_panel=SEARCH,
    ),
]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="tdg, attainment, high_priority_attainment, low_priority_attainment or cost. Repeatable: the first one "
        "decides which wins.",
        show_default="tdg",
        rich_help_panel=SEARCH,
    ),
]
Constraints = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        metavar="NAME=X",
        help="A constraint on an objective's mean, such as low_priority_attainment=0.5. Repeatable.",
        show_default=FILE,
        rich_help_panel=SEARCH,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Keep studies in a database, postgresql+psycopg://...: the same command on any number of machines shares "
        "the trials.",
        show_default="a journal in --out",
        rich_help_panel=options.OUTPUT,
    ),
]
TrialsOnly = Annotated[
    bool,
    typer.Option(
        "--trials-only",
        help="Only run trials, as one of several workers; another one does validation, test and report.",
        rich_help_panel=options.OUTPUT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar=options.OUT_METAVAR,
        help="Folder for studies, runs and tables. Work that is there is not repeated.",
        show_default="results/tune-NAME-..., one for each tuning",
        rich_help_panel=options.OUTPUT,
    ),
]

"""The options of a tuning, beside those of a panel (evaluation_options.py); without them the file's values hold."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option

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
    option("NAME", "Only this study of the file. Repeatable.", options.WHAT, "--study", show_default="all"),
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
    option(
        "NAME[=LOW..HIGH],...",
        "What is searched: a parameter of every policy that has it, or ROLE.NAME of one (scheduler, "
        "decode_scheduler, router, scaler); its range; of words NAME=WORD|WORD. Repeatable.",
        options.WHAT,
        show_default="what papers and systems give a value for",
    ),
]
Name = Annotated[
    str | None,
    option(
        "NAME",
        "What the tuning is called, in its folder and in a database, where each name has one panel and one space.",
        options.OUTPUT,
        "--name",
        show_default=FILE,
    ),
]
TestTraces = Annotated[
    list[str] | None,
    option(
        "NAME|FILE", "What the winner is tested on. Repeatable.", options.ON_WHAT, "--test-trace", show_default=FILE
    ),
]
Seeds = Annotated[
    int | None,
    option(
        "N",
        "Seeds of each trace, device and load that trials run; validation and test use others.",
        options.HOW_MUCH,
        min=1,
        show_default=FILE,
    ),
]
Trials = Annotated[
    int | None,
    option(
        "N", "Trials of each study. The same command with more goes on.", options.HOW_MUCH, min=1, show_default=FILE
    ),
]
TopK = Annotated[
    int | None,
    option(
        "K",
        "How many of the best trials are validated on fresh seeds; the best there wins.",
        options.HOW_MUCH,
        "--top-k",
        min=1,
        show_default=FILE,
    ),
]
Seed = Annotated[int | None, option("S", "Seed of the sampler.", options.HOW_MUCH, min=0, show_default=FILE)]
SEARCH = "How it is searched"
Sampler = Annotated[str | None, option("NAME", "tpe, gp, cmaes, nsga2, grid or random.", SEARCH, show_default="tpe")]
Pruner = Annotated[
    str | None,
    option(
        "NAME",
        "none, or wilcoxon: a trial ends when its runs are worse than those of the best by Wilcoxon's test.",
        SEARCH,
        show_default="none",
    ),
]
Objectives = Annotated[
    list[str] | None,
    option(
        "NAME",
        "tdg, attainment, high_priority_attainment, low_priority_attainment or cost. Repeatable: the first one "
        "decides which wins.",
        SEARCH,
        "--objective",
        show_default="tdg",
    ),
]
Constraints = Annotated[
    list[str] | None,
    option(
        "NAME=X",
        "A constraint on an objective's mean, such as low_priority_attainment=0.5. Repeatable.",
        SEARCH,
        "--constraint",
        show_default=FILE,
    ),
]
Storage = Annotated[
    str | None,
    option(
        "URL",
        "Keep studies in a database, postgresql+psycopg://...: the same command on any number of machines shares "
        "the trials.",
        options.OUTPUT,
        show_default="a journal in --out",
    ),
]
TrialsOnly = Annotated[
    bool,
    flag(
        "Only run trials, as one of several workers; another one does validation, test and report.",
        options.OUTPUT,
        "--trials-only",
    ),
]

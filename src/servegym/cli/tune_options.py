"""The options of a tuning, beside those of a panel (evaluation_options.py). They replace the file's values."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option

FILE = "the file's"

Config = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE.yaml", help="A tuning that ships, or a file of your own.", show_default="default"
    ),
]
Studies = Annotated[
    list[str] | None,
    option("NAME", "Only this study of the file. Repeatable.", options.WHAT, "--study", show_default="all"),
]
HELP_TEXTS = {
    "scheduler": "One study with this scheduler, in place of the file's; key=value fixes a parameter, or sets the "
    "start of one that is searched.",
    **{role: f"A {what} for the study." for role, what in {
        "decode_scheduler": "scheduler of decode engines", "router": "router", "scaler": "scaler",
    }.items()},
    "trace": "A family of generated requests, or a trace file, to tune and to test on (other seeds). Repeatable.",
}  # fmt: skip
Tune = Annotated[
    list[str] | None,
    option(
        "NAME[=LOW..HIGH],...",
        "Parameters to search: NAME for every policy that has it, or ROLE.NAME for one (scheduler, decode_scheduler, "
        "router, scaler), with a range, or NAME=WORD|WORD for words. Repeatable.",
        options.WHAT,
        show_default="those for which papers and systems give a value",
    ),
]
Name = Annotated[
    str | None,
    option(
        "NAME",
        "Name of the tuning, for its folder and in a database, where a name has one panel and one search space.",
        options.OUTPUT,
        "--name",
        show_default=FILE,
    ),
]
TestTraces = Annotated[
    list[str] | None,
    option(
        "NAME|FILE", "A trace to test the winner on. Repeatable.", options.ON_WHAT, "--test-trace", show_default=FILE
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
        "N", "Trials of each study. With more, the same command continues.", options.HOW_MUCH, min=1, show_default=FILE
    ),
]
TopK = Annotated[
    int | None,
    option(
        "K",
        "Number of best trials to validate on fresh seeds; the best there wins.",
        options.HOW_MUCH,
        "--top-k",
        min=1,
        show_default=FILE,
    ),
]
Seed = Annotated[int | None, option("S", "Seed of the sampler.", options.HOW_MUCH, min=0, show_default=FILE)]
SEARCH = "Search"
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
        "tdg, attainment, high_priority_attainment, low_priority_attainment or cost. Repeatable; the first one "
        "chooses the winner.",
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
        "Only run trials, as one of several workers; a command without it does validation, test and report.",
        options.OUTPUT,
        "--trials-only",
    ),
]

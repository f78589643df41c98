"""`servegym headroom`: compares schedulers or routers with the best run that a search finds, and with a bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import evaluation_options as panels
from servegym.cli import options
from servegym.cli.evaluate import texts_of
from servegym.cli.options import flag, option
from servegym.cli.output import number, progress_console
from servegym.cli.progress import bounds_or_why
from servegym.cli.runners import Work, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.cli.tables import show_tables
from servegym.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.headroom.kept import Found
    from servegym.evaluation.headroom.study import Headroom

EXAMPLES = """\
[bold]Examples[/bold]

servegym headroom --trace azure-code --device a100-llama3-8b --load overload --budget 300

servegym headroom --jobs 4 --budget 3000

servegym headroom --panel mine.yaml --scheduler slide-batching --scheduler learned:runs/batching/policy.json

servegym headroom --panel session_fleet --router lost-gain --router prefix-affinity --seeds 2
"""
ROWS_FILE = "headroom.csv"


@spec_options(
    many=("trace", "device", "load", "scheduler", "router"), without=("rate_per_s", "seed", "split"),
    help_texts={
        "scheduler": "A scheduler to compare with the best run; learned:PATH is a learned one. Repeatable.",
        "router": "Several: routers to compare with the best run; learned:PATH is a learned one. "
        "One: the router of all runs. Repeatable.",
    },
    shown=panels.PANELS,
)  # fmt: skip
@work_options(
    "results/headroom-PANEL-..., one for each panel; ledgers in results/headroom",
    "Folder for runs, search ledgers and the table. Work that it has is not repeated.",
    without=("ray",),
)
def headroom(
    words: Words,
    work: Work,
    panel: Annotated[
        str | None,
        option(
            "NAME|FILE.yaml",
            "The panel of cases: traces, devices, loads, SLOs, seeds. The options below replace its values.",
            options.ON_WHAT,
            show_default="headroom; with several routers session_fleet",
        ),
    ] = None,
    seeds: panels.Seeds = None,
    first_seed: panels.FirstSeed = None,
    budget: Annotated[
        int,
        option(
            "RUNS",
            "Runs of the search in each scenario. With more, the same command continues.",
            options.HOW_MUCH,
            min=1,
        ),
    ] = 1500,
    bound: Annotated[
        bool,
        flag(
            "Also compute the bound that no run can exceed: seconds to a minute for each scenario.",
            options.HOW_MUCH,
            "--bound/--no-bound",
        ),
    ] = True,
) -> None:
    """Search for the best run of each scenario, and compare policies with it: how much could a better one gain?

    Schedulers are compared, and the search is for TDG. Where several routers are named these are compared, and the
    search is for the sum of TDG ratio and SLO attainment.

    The search knows the future: every arrival, every length, and the seed that it is judged on. So it finds a possible
    run, not a usable policy. The gain of that run is a lower bound of the possible gain; an upper bound is computed
    too, unless --no-bound is given.

    Every round of a search is kept: after Ctrl-C, or with a larger --budget, the same command continues from there.
    """
    from servegym.evaluation.headroom.kept import search_all
    from servegym.evaluation.headroom.study import PANELS, POLICIES, Headroom, bounds_of, headroom_rows, run_policies
    from servegym.evaluation.panels.panel import load_panel

    schedulers, routers = (texts_of(words.get(kind)) for kind in PANELS)
    if len(schedulers) > 1 and len(routers) > 1:
        raise ServegymError("several schedulers and several routers are named; name several of one kind only")
    kind = "router" if len(routers) > 1 else "scheduler"
    named = tuple(texts_of(words.pop(kind, None))) or POLICIES
    asked = Headroom(load_panel(panel or PANELS[kind]).replaced(words, seeds=seeds, first_seed=first_seed), named, kind)
    directory = work.out or asked.default_directory
    with work.kept("runs", asked.runs, directory) as (runner, progress):
        runs = run_policies(asked, directory, progress, runner, work.fresh)
    ledgers = work.beside(directory, "headroom")
    with work.kept("runs of searches", budget * len(asked.cases), ledgers) as (runner, progress):
        found = search_all(asked.cases, ledgers, budget, progress, runner, work.fresh)
    bounds, no_bound = (
        (None, "not asked for")
        if not bound
        else bounds_or_why(
            lambda progress: bounds_of(asked, work.beside(directory, "bounds"), progress),
            "all runs, searches and {} bounds are kept",
        )
    )
    rows = headroom_rows(asked, runs, found, bounds)
    path = directory / ROWS_FILE
    rows.to_csv(path, index=False)
    show(asked, rows, found, work.console)
    if bound and no_bound:
        progress_console().print(f"No bound: {no_bound}.")
    work.written([path])
    work.write_json(document(asked, rows, found, no_bound, [path]))


def show(asked: Headroom, rows: pd.DataFrame, found: list[Found], console: Console) -> None:
    """Print two tables of means, one by cell, and the size of the search."""
    from servegym.evaluation.headroom.study import BOUND, CELL, FOUND, SCORES, by_cell, by_load
    from servegym.evaluation.panels.part import notes_of
    from servegym.evaluation.panels.wording import SCORES as WORDS

    console.print(asked.title)
    for score in SCORES:
        means = by_load(rows, score)
        heads = {load: "all" if load == "all" else f"load\N{NO-BREAK SPACE}{load}" for load in means}
        table = [
            {asked.kind: str(name), **{heads[load]: number(value, 4) for load, value in row.items()}}
            for name, row in means.iterrows()
        ]
        console.print(WORDS[score])
        show_tables(console, {"": table})
    cells = by_cell(rows)
    policies = [name for name in cells if name not in (*CELL, FOUND, BOUND)]
    references = [FOUND, *([BOUND] if BOUND in cells else [])]
    table = [
        {name: f"{row[name]:g}" if name == "load" else row[name] for name in CELL}
        | {f"best {asked.kind}": number(row[policies].max(), 4)}
        | {name: number(row[name], 4) for name in references}
        for _, row in cells.iterrows()
    ]
    show_tables(console, {"TDG ratio by cell": table}, text=["device"])
    counts = sorted({one.evaluations for one in found})
    console.print(
        f"Best found: of {' to '.join(f'{count:,}' for count in dict.fromkeys((counts[0], counts[-1])))} runs of each "
        "scenario by a search that knows its future: a possible run for this seed, not a policy."
    )
    for note in notes_of(asked.parts):
        console.print(note)


def document(
    asked: Headroom, rows: pd.DataFrame, found: list[Found], no_bound: str | None, files: list[Path]
) -> dict[str, Any]:
    """Make the question and its results as a JSON document."""
    from servegym.evaluation.panels.part import notes_of

    searches = [
        {"score": one.score, "evaluations": one.evaluations, "settings": one.point.settings}
        | {"changed_requests": len(one.point.changes)}
        for one in found
    ]
    return {
        "headroom": asked.identity,
        "means_over": list(dict.fromkeys(part.repeats.over for part in asked.parts)),
        "notes": notes_of(asked.parts),
        "rows": rows.to_dict("records"),
        "searches": searches,
        "no_bound": no_bound,
        "files": files,
    }

"""`servegym compare`: schedulers x routers x loads x seeds, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.comparison_tables import show_comparison
from servegym.cli.interruption import Interrupted
from servegym.cli.output import check_output_folder, console_for, progress_console, write_json
from servegym.cli.user_policies import load_policy_files
from servegym.simulator.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd

    from servegym.experiments.comparison import Comparison

EXAMPLES = """\
[bold]Examples[/bold]

servegym compare

servegym compare --scheduler edf --scheduler slide-batching:gamma=2 --load medium --load 1.2 --seeds 10

servegym compare --engines 4 --scheduler slide-batching --router round-robin --router min-load --router gorouting

servegym compare --trace my.csv --rate 4 --rate 8 --baseline vllm-fcfs --out results/mine
"""


def compare(
    trace: options.Trace = "azure-conv",
    slo: options.Slo = "proserve",
    device: options.Device = "a100-llama3-8b",
    engines: options.Engines = 1,
    prefill: options.Prefill = 0,
    decode: options.Decode = 0,
    link_gb_per_s: options.LinkBandwidth = 25.0,
    scheduler: options.Schedulers = None,
    decode_scheduler: options.DecodeScheduler = None,
    router: options.Routers = None,
    load_policies: options.LoadPolicies = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:...]",
            help="The compared scheduler to take differences to.",
            show_default="the best at each load",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    rate: options.Rates = None,
    load: options.Loads = None,
    requests: options.Requests = None,
    seeds: options.Seeds = 5,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs at a time. The results are the same however many.",
            rich_help_panel=options.HOW_MUCH,
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar=options.OUT_METAVAR,
            help="Where results are kept and found again.",
            show_default="results/compare-TRACE-..., one for each comparison",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start over: forget what --out holds.", rich_help_panel=options.OUTPUT),
    ] = False,
    report: options.Report = None,
    json: options.Json = None,
) -> None:
    """Compare schedulers (and routers) at several loads, each over several seeds, on the same requests.

    A run serves 3000 requests unless --requests says otherwise, or all of a shorter file; of a longer one
    each seed serves another stretch. Means are over seeds, with 95 % intervals; differences are taken seed by seed.

    Every run is kept as soon as it is done: after Ctrl-C the same command goes on from there.
    """
    if rate and load:
        raise ServegymError("--rate and --load are both given; one says how fast requests arrive")
    if out is not None:
        check_output_folder(out)
    load_policy_files(load_policies)

    from servegym.experiments.comparison import SCHEDULERS, Comparison
    from servegym.experiments.load import LOADS, parse_load
    from servegym.experiments.plots import plot_comparison
    from servegym.experiments.summary import check_baseline, save_tables, summarise

    comparison = Comparison(
        trace=trace,
        slo=slo,
        device=device,
        engines=engines,
        prefill=prefill,
        decode=decode,
        link_gb_per_s=link_gb_per_s,
        decode_scheduler=decode_scheduler,
        routers=tuple(router or [options.ROUTER]),
        schedulers=tuple(scheduler or SCHEDULERS),
        loads=tuple(parse_load(text) for text in load) if load else tuple(LOADS.values()),
        rates_per_s=tuple(rate or ()),
        seeds=seeds,
        requests=requests,
    )
    if baseline is not None:
        check_baseline(baseline, list(comparison.contenders))
    directory = out or comparison.default_directory
    cells = run_with_progress(comparison, directory, jobs, fresh)
    summary = summarise(cells, baseline)
    plot = plot_comparison(summary, comparison.title, directory / "comparison.png")
    files = [*save_tables(cells, summary, directory), plot]

    console = console_for(json)
    show_comparison(comparison, summary, baseline, console)
    console.print("Written:", ", ".join(str(path) for path in files))
    if report is not None:
        from servegym.experiments.reports.compare_report import compare_report

        console.print(f"Report: {compare_report(comparison, summary, cells, plot, report)}")
    if json is not None:
        write_json(document(comparison, summary, files), json)


def run_with_progress(comparison: Comparison, directory: Path, jobs: int, fresh: bool) -> pd.DataFrame:
    """The cells of a comparison, with a progress bar on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from servegym.experiments.comparison import CELLS_FILE, run_comparison

    done = 0
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=progress_console(),
    )
    task = bar.add_task("runs", total=None)

    def progress(cells_done: int, cells: int) -> None:
        nonlocal done
        done = cells_done
        bar.start()  # now that nothing is wrong with the comparison; once started it does nothing
        bar.update(task, completed=cells_done, total=cells)

    try:
        return run_comparison(comparison, directory, progress, jobs=jobs, fresh=fresh)
    except KeyboardInterrupt:
        kept = f"{done} of {len(comparison.cells)} runs are kept in {directory / CELLS_FILE}"
        raise Interrupted(f"{kept}; the same command{' without --fresh' * fresh} goes on from there") from None
    finally:
        if bar.live.is_started:
            bar.stop()


def document(comparison: Comparison, summary: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """What was compared and what came out."""
    from servegym.experiments.summary import conclusion

    return {
        "comparison": comparison.identity,
        "summary": summary.to_dict("records"),
        "conclusions": [conclusion(at_load) for _, at_load in summary.groupby("load", sort=False)],
        "files": files,
    }

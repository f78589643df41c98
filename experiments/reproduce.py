"""`servegym reproduce`: what the papers claim, measured."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.ending import Interrupted
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, console_for, new_table, write_json
from servegym.cli.progress import bars
from servegym.cli.runners import runner_of
from servegym.errors import ExperimentError, ServegymError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from experiments.claims.harness.outcome import Outcome
    from experiments.claims.harness.registry import Claim
    from experiments.claims.harness.settings import Size
    from servegym.evaluation.running import Runner

EXAMPLES = """\
[bold]Examples[/bold]

servegym reproduce --list

servegym reproduce proserve-fig15 --quick

servegym reproduce proserve-fig15 --seeds 10000

servegym reproduce proserve-fig15 --device h100-llama3-8b

servegym reproduce --device mine.json --instead-of a100-llama3-70b-tp4

servegym reproduce --ray 10.0.0.5:6379

servegym reproduce proserve-fig3 --json - | jq .holds_by_setting
"""
DEFAULT_DIRECTORY = Path("results") / "reproduce"


def reproduce(
    claim: Annotated[
        list[str] | None, typer.Argument(metavar="[CLAIM ...]", help="Which claims; all of them when none is named.")
    ] = None,
    quick: Annotated[
        bool,
        flag(
            "One family and device, short runs, other seeds: minutes for all claims, and wide intervals.",
            options.HOW_MUCH,
            "--quick",
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        option(
            "FIRST",
            "As many seeds from this one on, instead of those the claims were written down for: fresh runs. "
            "Rows of other seeds are kept apart.",
            options.HOW_MUCH,
            show_default="3000, with --quick 500",
        ),
    ] = None,
    device: Annotated[
        str | None,
        option(
            "NAME|FILE.json",
            "Run on this device, and no other, by the rules (SLOs, chunks) of the one it stands in for.",
            options.ON_WHAT,
            show_default="the devices of each claim",
        ),
    ] = None,
    instead_of: Annotated[
        str | None,
        option(
            "NAME",
            "Which of a claim's devices --device stands in for. Without a CLAIM: all that have a setting on it.",
            options.ON_WHAT,
            show_default="the first of each claim",
        ),
    ] = None,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[
        Path,
        option(
            options.OUT_METAVAR,
            "Where runs are kept and found again, and the pages of results are written.",
            options.OUTPUT,
        ),
    ] = DEFAULT_DIRECTORY,
    page: Annotated[
        Path | None,
        option(
            "FILE.md",
            "Write the index there instead, a page a claim into the folder FILE, pictures into images/.",
            options.OUTPUT,
        ),
    ] = None,
    fresh: Annotated[
        bool, flag("Start over: forget what --out holds of these claims.", options.OUTPUT, "--fresh")
    ] = False,
    list_claims: Annotated[
        bool, typer.Option("--list", help="Print the claims and their hypotheses, and run nothing.")
    ] = False,
    json: options.Json = None,
) -> None:
    """Measure what the papers claim, and say of each claim whether it holds, with numbers and reasons.

    Each claim was written down as a hypothesis, margins included, before it was run. Every run is kept as soon as
    it is done: after Ctrl-C the same command continues from there. Pages are written claim by claim; one that ends in
    an error does not stop the others, and the command says at its end which did. The JSON document of one claim is an
    object; that of several is {"claims": [...]}, of such objects.
    """
    from experiments.claims.harness.registry import find_claims
    from experiments.claims.harness.settings import FULL, QUICK

    wanted = find_claims(claim or ())
    if device is not None:
        wanted = moved(wanted, device, instead_of, every=not claim)
    elif instead_of is not None:
        raise ExperimentError(f"--instead-of {instead_of} without --device; there should be one to run")
    console = console_for(json)
    if list_claims:
        console.print(claims_table(wanted))
        if json is not None:
            write_documents([stated(one) for one in wanted], json, alone=len(wanted) == 1)
        return
    size = QUICK if quick else FULL
    if seeds is not None:
        size = size.seeded(seeds)
    check_output_folder(out)
    index = page or folder_of(out, device, instead_of) / "results.md"
    outcomes: list[Outcome] = []
    written: dict[Path, None] = {}
    failed: list[str] = []
    with runner_of(jobs, ray) as runner:
        for one, study in studies_with_progress(wanted, size, out, runner, fresh):
            try:
                outcome = study()
                written |= dict.fromkeys(write_pages_of([outcome], index))
                outcomes.append(outcome)
            except Interrupted:
                raise
            except Exception as error:
                failed.append(error_line(one, error, out))
    for outcome in outcomes:
        show(outcome, console)
    if written:
        console.print("Written:", ", ".join(map(str, written)))
    if json is not None:
        write_documents([outcome.to_json() for outcome in outcomes], json, alone=len(wanted) == 1)
    if failed:
        raise ExperimentError("; ".join(failed))


def moved(claims: list[Claim], device: str, instead_of: str | None, every: bool) -> list[Claim]:
    """The claims on another device (`Claim.on`). every: those that have a setting to run on it; else each must.

    Raises ExperimentError where one has none, or where none has.
    """
    found, problem = [], ""
    for claim in claims:
        try:
            found.append(claim.on(device, instead_of))
        except ExperimentError as error:
            if not every:
                raise
            problem = str(error)
    if not found:
        raise ExperimentError(f"no claim has a setting on {instead_of}: {problem}")
    return found


def folder_of(out: Path, device: str | None, instead_of: str | None) -> Path:
    """Where pages are written: those of a claim on another device lie apart from its own."""
    if device is None:
        return out
    from servegym.latency_models.profile import load_profile

    name = load_profile(device).name
    return out / (f"on-{name}" if instead_of is None else f"on-{name}-instead-of-{instead_of}")


def error_line(claim: Claim, error: Exception, out: Path) -> str:
    """What stopped a claim, in a line. An error of its code, and not of its input, is kept whole in a file."""
    if isinstance(error, ServegymError):
        return f"{claim.id}: {error}"
    path = out / f"{claim.id}-error.txt"
    path.write_text("".join(traceback.format_exception(error)), "utf-8")
    return f"{claim.id} ended in {type(error).__name__}: {error}; where, is in {path}"


def studies_with_progress(
    claims: list[Claim], size: Size, directory: Path, runner: Runner, fresh: bool
) -> Iterator[tuple[Claim, Callable[[], Outcome]]]:
    """Claims, one after the other, each with what runs it, with a progress bar each (without a terminal: lines) on
    standard error."""
    from experiments.claims.harness.study import Study

    with bars() as show_bar:
        for claim in claims:
            finished = [0]

            def progress(done: int, cells: int, claim=claim, finished=finished) -> None:
                finished[0] = done
                show_bar(f"{claim.id}, runs", done, cells)

            def study(claim=claim, finished=finished, progress=progress) -> Outcome:
                try:
                    return Study(claim, size).run(directory, progress, fresh=fresh, runner=runner)
                except KeyboardInterrupt:
                    kept = f"{finished[0]} runs of {claim.id} are kept in {directory}"
                    without = " without --fresh" * fresh
                    raise Interrupted(f"{kept}; the same command{without} continues from there") from None

            yield claim, study


def write_pages_of(outcomes: list[Outcome], path: Path) -> list[Path]:
    import datetime

    from experiments.claims.harness.page import write_pages

    return write_pages(outcomes, path, datetime.date.today())


def write_documents(documents: list[dict], target: str, alone: bool) -> None:
    """The document of a claim alone as it is, others as a list under "claims"; none where the only claim failed."""
    if documents or not alone:
        write_json(documents[0] if alone else {"claims": documents}, target)


def stated(claim: Claim) -> dict[str, str]:
    """What is known of a claim before it runs."""
    return {
        "claim": claim.id,
        "figure": claim.prose.figure,
        "paper": claim.prose.paper,
        "hypothesis": claim.prose.hypothesis,
        "refuted_by": claim.prose.refuted_by,
    }


def claims_table(claims: list[Claim]) -> Table:
    table = new_table("claim", "paper", "hypothesis", numbers=False)
    for claim in claims:
        table.add_row(claim.id, claim.prose.figure, claim.prose.hypothesis)
        table.add_section()
    return table


def show(outcome: Outcome, console: Console) -> None:
    """The checks of a claim with what was measured in each setting, then its verdict and reason."""
    from experiments.claims.harness.outcome import measured

    claim = outcome.claim
    table = new_table(
        "check", "setting", "measured", "expected", "", title=f"{claim.id}: {claim.prose.paper}", numbers=False
    )
    for one in outcome.settings:
        for check in one.checks:
            if not check.examines:
                table.add_row(check.name, one.setting.name, measured(check), str(check.expected), check.verdict)
    console.print(table)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in outcome.counts.items())
    console.print(f"{claim.id} {outcome.verdict_words} ({counts}). {outcome.reason}\n")

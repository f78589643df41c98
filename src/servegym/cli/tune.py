"""`servegym tune`: searches parameters of policies, and tests the best ones on other requests."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.cli import options
from servegym.cli import tune_options as tuning_options
from servegym.cli.ending import Interrupted
from servegym.cli.output import number, progress_console
from servegym.cli.progress import bars
from servegym.cli.runners import Work, runner_of, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.cli.tables import show_tables
from servegym.errors import ServegymError
from servegym.extras import needs

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.evaluation.panels.panel import Panel
    from servegym.evaluation.running import Runner
    from servegym.tuners.studies.config import TuningConfig
    from servegym.tuners.studies.results import StudyResults

EXAMPLES = """\
[bold]Examples[/bold]

servegym tune

servegym tune proserve-a100 --study joint --jobs 2

servegym tune --scheduler slide-batching --tune gamma,eta --trials 50

servegym tune --scheduler edf --engines 1 --tune max_num_batched_tokens=128..4096 --trace azure-code --sampler gp

servegym tune --objective tdg --objective high_priority_attainment --sampler nsga2 --trials 200

servegym tune mine.yaml --constraint low_priority_attainment=0.5 --out results/mine --json -

servegym tune proserve-a100 --storage postgresql+psycopg://user:password@host/studies --trials-only
"""
EXTRA = "tune"
NOT_IDENTITY = ("description", "trials", "top_k", "slices")  # fields that may change in the same study


@spec_options(
    many=("trace", "device", "load"), without=("rate_per_s", "seed", "split"), help_texts=tuning_options.HELP_TEXTS,
    shown=tuning_options.FILE,
)  # fmt: skip
@work_options(
    "results/tune-NAME-..., one for each tuning",
    "Folder for studies, runs and tables. Work that it has is not repeated.",
    without=("fresh",),
)
def tune(
    words: Words,
    work: Work,
    config: tuning_options.Config = None,
    study: tuning_options.Studies = None,
    test_trace: tuning_options.TestTraces = None,
    tune: tuning_options.Tune = None,
    name: tuning_options.Name = None,
    sampler: tuning_options.Sampler = None,
    pruner: tuning_options.Pruner = None,
    objective: tuning_options.Objectives = None,
    constraint: tuning_options.Constraints = None,
    seeds: tuning_options.Seeds = None,
    trials: tuning_options.Trials = None,
    top_k: tuning_options.TopK = None,
    seed: tuning_options.Seed = None,
    storage: tuning_options.Storage = None,
    trials_only: tuning_options.TrialsOnly = False,
) -> None:
    """Search the parameters of policies. The best trials are run again on fresh requests, and the winner is compared
    with the defaults on requests and traces that were not used for tuning.

    Every trial and run is kept as soon as it is done: after Ctrl-C, or with more --trials, the same command continues.
    """
    with needs("tuning", EXTRA):
        import optuna  # noqa: F401 (a missing package is an error now, before anything else is done)

    from servegym.tuners.studies.reading import DEFAULT, load_tuning

    chosen = load_tuning(config or DEFAULT)
    roles = {role: words.pop(role, None) for role in ("scheduler", "decode_scheduler", "router", "scaler")}
    if words or test_trace or any(roles.values()) or tune:  # the file's description no longer fits
        chosen = chosen.replaced(description="")
    if any(roles.values()) or tune:
        chosen = with_one_study(chosen, config, study, roles, tune)
    elif study:
        chosen = chosen.only(study)
    if roles["scaler"]:  # a panel with a start-up time needs one
        words["scaler"] = roles["scaler"]
    chosen = with_panels(chosen, words, test_trace, seeds).replaced(
        name=name, trials=trials, top_k=top_k, seed=seed, sampler=sampler, pruner=pruner,
        objectives=tuple(objective) if objective else None,
        constraints=options.numbers_of(constraint, "constraint", "NAME=NUMBER") or None,
    )  # fmt: skip
    directory = work.out or Path("results") / f"tune-{chosen.name}-{digest(chosen)}"
    with runner_of(work.jobs, work.ray, work.load_policies) as runner, warnings_in_a_line():
        studies = run_with_progress(chosen, directory, runner, storage, trials_only)
    show(chosen, studies, directory, trials_only, work)


def with_one_study(
    config: TuningConfig, named: str | None, studies: list[str] | None, roles: dict[str, str | None],
    tune: list[str] | None,
) -> TuningConfig:  # fmt: skip
    """Make the tuning with one study: of the policies that options name, else of those of its only study."""
    from servegym.tuners.studies.config import StudyConfig
    from servegym.tuners.studies.reading import parse_tune

    ranges = parse_tune(tune or [])
    if any(roles.values()):
        if studies:
            raise ServegymError("--study takes a study of the file, and --scheduler, --router make another; give one")
        name = "-".join(text.partition(":")[0] for text in roles.values() if text)
        return config.replaced(studies={name: StudyConfig(**roles, tune=ranges)})
    kept = config.only(studies) if studies else config
    if len(kept.studies) > 1:
        several = ", ".join(kept.studies)
        raise ServegymError(f"--tune is for one study, and {named} has {several}; name one with --study")
    return kept.replaced(
        studies={name: dataclasses.replace(study, tune=ranges) for name, study in kept.studies.items()}
    )


def with_panels(config: TuningConfig, words: Words, test_traces: list[str] | None, seeds: int | None) -> TuningConfig:
    """Make the tuning, with its panels changed by options."""

    def changed(panel: Panel, more: Words) -> Panel:
        return dataclasses.replace(panel, spec=panel.replaced(words | more).spec)

    tried = changed(config.panel, {})
    return config.replaced(
        panel=dataclasses.replace(tried, seeds=seeds or tried.seeds),
        validation=changed(config.validation, {}),
        test=changed(config.test, {"trace": tuple(test_traces)} if test_traces else {}),
    )


def digest(config: TuningConfig) -> str:
    """Return the digest of the tuning without the fields in NOT_IDENTITY: more trials continue in the same folder."""
    from servegym.evaluation.identity import document_digest

    document = {key: value for key, value in config.to_json().items() if key not in NOT_IDENTITY}
    return document_digest(document)


def run_with_progress(
    config: TuningConfig, directory: Path, runner: Runner, storage: str | None, trials_only: bool
) -> list[StudyResults]:
    """Run a tuning with a progress bar on standard error; returns the results of its studies."""
    from servegym.tuners.studies.tuning import run_tuning

    with bars() as show_bar:

        def progress(study: str, what: str, done: int, in_all: int) -> None:
            show_bar(f"{study}: {what}", done, in_all)

        try:
            return list(run_tuning(config, directory, runner, progress, storage_url=storage, trials_only=trials_only))
        except KeyboardInterrupt:
            raise Interrupted(
                f"finished trials are kept in {'the database' if storage else directory}, and runs in {directory}; the "
                "same command continues from there"
            ) from None


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print warnings without the file that raised them, and those of Optuna not at all."""

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if "optuna" not in Path(filename).parts and not category.__module__.startswith("optuna"):
            progress_console().print(f"servegym: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # type: ignore[assignment]
        yield


def show(config: TuningConfig, studies: list[StudyResults], directory: Path, trials_only: bool, work: Work) -> None:
    from servegym.tuners.studies.tuning import save_tuning

    console, notes = work.console, notes_of_panels(config)
    files: list[Path] = []
    if trials_only:
        console.print(f"All trials of {', '.join(config.studies)} are done; run without --trials-only for the rest.")
    else:
        from servegym.tuners.studies.report import study_report

        files = save_tuning(config, studies, directory)
        for results in studies:
            files += study_report(results, directory / results.name)
            show_parameters(results, console)
        show_studies(studies, console)
        for note in notes:
            console.print(note)
        reports = [str(path) for path in files if path.suffix == ".html"]
        console.print(f"Written: tables in {directory}, and {', '.join(reports)}", soft_wrap=True)
    work.write_json(
        {
            "tuning": config.document,
            "directory": directory,
            "notes": notes,
            "studies": {results.name: results.document for results in studies},
            "files": files,
        }
    )


def notes_of_panels(config: TuningConfig) -> list[str]:
    """List notes on the panels of a tuning: repairs to traces, and traces in which seeds do not differ."""
    from servegym.evaluation.panels.part import notes_of
    from servegym.tuners.studies.instances import instances_of

    panels = [config.panel, config.validation, config.test]
    return list(dict.fromkeys(note for panel in panels for note in notes_of(instances_of(panel).parts)))


def show_parameters(results: StudyResults, console: Console) -> None:
    """Print the winner's parameters beside the defaults, and the best ones at each load."""
    of_loads = {
        name: f"best at load\N{NO-BREAK SPACE}{name.removeprefix('at_load_')}"
        for name in results.parameters.columns
        if name.startswith("at_load_")
    }
    outcome = "the defaults were not beaten" if results.kept_defaults else f"the winner is {results.winner}"
    table = []
    for row in results.parameters.to_dict("records"):
        unit = f", {row['unit']}" if row["unit"] else ""
        columns = {"default": "default", "winner": "winner", **of_loads}
        values = {title: value_text(row[name]) for name, title in columns.items()}
        table.append({"parameter": f"{row['parameter']}{unit}", **values})
    show_tables(console, {f"{results.name}: {outcome}": table}, list(of_loads.values()))


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)


def show_studies(studies: list[StudyResults], console: Console) -> None:
    """Print the test result of each study."""
    from servegym.evaluation.measures import RATIOS
    from servegym.tuners.studies.analysis import no_room
    from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER

    table = [
        {
            "study": results.name,
            "defaults": number(results.test_mean(DEFAULTS), 4),
            "winner": number(results.test_mean(WINNER), 4),
            "difference": results.tested(WINNER, DEFAULTS).in_words(),
            "schedule - winner": results.tested(SCHEDULE, WINNER).in_words(),
        }
        for results in studies
    ]
    figure = studies[0].objective.figure
    name = RATIOS[figure].name if figure in RATIOS else figure
    show_tables(console, {f"Mean {name} on the test": table}, ["schedule - winner"])
    if any("(" in row["difference"] + row["schedule - winner"] for row in table):
        console.print("In brackets: 95 % intervals, paired, by bootstrap over seeds.")
    for results in studies:
        if room := no_room(results.objective, results.test_mean(DEFAULTS)):
            console.print(f"{results.name}: {room}")

"""`servegym train`: trains a policy by a configuration."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.ending import Interrupted
from servegym.cli.options import option
from servegym.cli.output import check_output_folder, console_for, new_table, number, progress_console, write_json
from servegym.cli.progress import lines_now_and_then, stopped, waiting
from servegym.cli.runners import load_policy_files, runner_of
from servegym.cli.spec_options import Words, flag_of, spec_options
from servegym.errors import ServegymError
from servegym.extras import needs

if TYPE_CHECKING:
    from servegym.evaluation.running import Runner
    from servegym.tuners.config import TrainingConfig

EXAMPLES = """\
[bold]Examples[/bold]

servegym train ppo-scheduling-overload --minutes 5

servegym train bc-cluster-routing --seed 3 --out runs/routing

servegym train mine.yaml --steps 2000000 --json -

servegym train --resume runs/routing

servegym compare --router min-load --router learned:runs/routing/policy.json --engines 4
"""
EXTRA, EVOLUTION = "train", "cma"


@spec_options(many=("trace", "device", "load", "slo"), without=("seed", "split"), shown="the configuration's")
def train(
    words: Words,
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.yaml", help="A training that ships, or a file of your own.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        Path | None, option("DIR", "Resume the training in this folder from its last checkpoint.", options.ON_WHAT)
    ] = None,
    algorithm: Annotated[
        str | None, option("NAME", "ppo, maskable-ppo, cma or bc, instead of the configuration's.", options.WHAT)
    ] = None,
    load_policies: options.LoadPolicies = None,
    minutes: Annotated[
        float | None,
        option(
            "X",
            "End after this time, earlier runs of a resumed training included; without --steps, after any number of "
            "steps.",
            options.HOW_MUCH,
            min=0.0,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option(
            "N",
            "End after this many environment steps, rounded up to whole rollouts of all environments (cma: simulated "
            "scenarios, to whole generations; bc: decisions, in equal rounds); without --minutes, after any time.",
            options.HOW_MUCH,
            min=1,
        ),
    ] = None,
    seed: Annotated[int | None, option("S", "Seed, instead of the configuration's.", options.HOW_MUCH, min=0)] = None,
    ray: Annotated[
        str | None,
        option(
            options.RAY_METAVAR,
            f"Simulate the scenarios of the algorithm {EVOLUTION} on Ray, as `compare` does its runs. "
            "The learned policy is the same.",
            options.HOW_MUCH,
            "--ray",
            show_default="no: in threads of this process",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            options.OUT_METAVAR,
            "Folder for the policy, its picture, checkpoints and TensorBoard files.",
            options.OUTPUT,
            show_default="results/train-NAME-seedS",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Train a policy in an environment, starting from the heuristic that it is to improve.

    The result, policy.json, is a compiled policy that every command takes as learned:PATH. A checkpoint is written
    every few minutes: after Ctrl-C or a crash, --resume continues from the last one.

    The base can be a policy of your own: name its file with --load-policies, here (also with --resume) and wherever the
    learned policy is used.
    """
    load_policy_files(load_policies)
    from servegym.tuners.config import load_config
    from servegym.tuners.runs import RunFolder

    if resume is not None:
        if words or config is not None or out is not None or algorithm is not None or seed is not None:
            raise ServegymError(
                "--resume continues with the configuration in its folder; of the other options, it takes only "
                "--load-policies, --minutes, --steps and --json"
            )
        folder = RunFolder(resume)
        chosen = folder.config().replaced(minutes=minutes, steps=steps)
    elif config is None:
        from servegym.tuners.config import config_names

        raise ServegymError(f"name a training: a .yaml file, or one of {', '.join(config_names())}")
    else:
        chosen = load_config(config).replaced(minutes=minutes, steps=steps, seed=seed, algorithm=algorithm)
        if words:
            from servegym.scenarios.spec import overridden
            from servegym.scenarios.values import plain

            given = {name: plain(value) for name, value in words.items()}
            chosen = chosen.replaced(scenarios=overridden(chosen.scenarios, given))
        options_given = [flag_of(name) for name in words] + ["--algorithm"] * (algorithm is not None)
        if options_given:  # what is wrong may be in them
            chosen = chosen.replaced(file=f"{chosen.file} with {', '.join(options_given)}")
        folder = RunFolder(out or Path("results") / f"train-{chosen.name}-seed{chosen.seed}")
        check_output_folder(folder.path)
    check_runs_on_ray(chosen.algorithm, ray)
    with runner_of(None, ray, load_policies) as runner:
        run_with_progress(chosen, folder.path, resume is not None, runner if chosen.algorithm == EVOLUTION else None)
    show(folder.summary(), json)


def trainer(algorithm: str) -> Callable[..., Any]:
    """Return the training function of an algorithm, which takes the configuration, a folder, resume and progress."""
    if algorithm == EVOLUTION:
        from servegym.tuners import evolution

        return evolution.train
    if algorithm == "bc":
        from servegym.tuners import cloning

        return cloning.train
    from servegym.tuners import training

    return training.train


def check_runs_on_ray(algorithm: str, ray: str | None) -> None:
    """Raise ServegymError if Ray is asked for with an algorithm that cannot use it."""
    if ray is not None and algorithm != EVOLUTION:
        raise ServegymError(
            f"--ray {ray}: only the algorithm {EVOLUTION} has scenarios that can run on a cluster; "
            f"{algorithm} learns in one process"
        )


def run_with_progress(config: TrainingConfig, folder: Path, resume: bool, runner: Runner | None = None) -> None:
    """Train, with a progress bar on standard error. runner: for the scenarios of evolution."""
    from servegym.tuners.outcome import Stopped

    how = f"servegym train --resume {folder} continues from the last checkpoint"
    try:
        with needs("training", EXTRA), bar() as progress:
            train = trainer(config.algorithm)
            if runner is not None:
                train = functools.partial(train, runner=runner)
            train(config, folder, resume=resume, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(how) from None
    except Stopped as error:
        raise Interrupted(f"{error}; {how}") from None


@contextlib.contextmanager
def bar() -> Iterator[Callable[[float, str], None]]:
    """Show a bar on standard error. Yields a function to call with the share done and a text."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    # Of a line that is too short, the end of the text is cut, not the numbers.
    share, elapsed = Column(min_width=len("100%"), no_wrap=True), Column(min_width=len("0:00:00"), no_wrap=True)
    columns = (
        BarColumn(bar_width=20), TaskProgressColumn(table_column=share), TimeElapsedColumn(table_column=elapsed),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
    )  # fmt: skip
    made = Progress(*columns, console=progress_console())
    task, show_line = made.add_task("", total=1.0), lines_now_and_then(made.console)

    def progress(share: float, text: str) -> None:
        prepared()
        made.start()  # start only once the training is known to be valid; later calls do nothing
        made.update(task, completed=min(share, 1.0), description=text)
        show_line(f"{100 * min(share, 1.0):.0f} % ({text})")

    with stopped(made), waiting(made.console, "preparing") as prepared:
        yield progress


def show(summary: dict[str, Any], json: str | None) -> None:
    """Print the result of a training."""
    from servegym.evaluation.intervals import Interval

    found = summary["validation"]
    table = new_table("in validation", "TDG ratio", "SLO attainment")
    names = ("attainment", "attainment_difference", "attainment_half_width")
    attained, more, half = (found.get(name, math.nan) for name in names)  # a folder of an earlier release has none
    table.add_row(summary["base"], number(found["base_tdg_ratio"], 4), number(attained - more, 3))
    table.add_row("with what was learned", number(found["policy_tdg_ratio"], 4), number(attained, 3))
    tdg = Interval.about(found["difference_tdg_ratio"], found["half_width_tdg_ratio"]).text("+.4f")
    table.add_row("difference", tdg, Interval.about(more, half).text("+.3f"))
    console = console_for(json)
    console.print(table)
    for note in summary.get("notes", ()):  # a folder of an earlier release has none
        console.print(note)
    console.print(f"written: {summary['policy']}, {summary['picture']}", soft_wrap=True)
    write_json(summary, json)

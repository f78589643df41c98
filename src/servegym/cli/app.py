"""The `servegym` command and its sub-commands."""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from servegym import __version__
from servegym.cli import (
    calibrate,
    compare,
    dataset,
    devices,
    endpoint_picker,
    evaluate,
    export,
    goodput,
    headroom,
    plan,
    policies,
    profile,
    proxy,
    recommend,
    replay,
    score,
    shadow,
    simulate,
    studies,
    trace,
    train,
    tune,
    validate,
    warm_up,
)  # fmt: skip
from servegym.cli.ending import run_app

PACKAGE = Path(__file__).parents[1]
KERNELS = ("simulator", "latency_models/forms", "baselines", "envs")  # folders with kernels

app = typer.Typer(
    name="servegym",
    help="A gym for LLM serving: simulate an engine, compare its schedulers.",
    epilog="Start with: servegym compare",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("goodput", epilog=goodput.EXAMPLES)(goodput.goodput)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("recommend", epilog=recommend.EXAMPLES)(recommend.recommend)
app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("dataset", epilog=dataset.EXAMPLES)(dataset.dataset)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("score", epilog=score.EXAMPLES)(score.score)
app.command("headroom", epilog=headroom.EXAMPLES)(headroom.headroom)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.add_typer(trace.app, name="trace")
app.add_typer(profile.app, name="profile")
app.command("policies", epilog=policies.EXAMPLES)(policies.policies)
app.command("devices", epilog=devices.EXAMPLES)(devices.devices)
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("proxy", epilog=proxy.EXAMPLES)(proxy.proxy)
app.command("endpoint-picker", epilog=endpoint_picker.EXAMPLES)(endpoint_picker.endpoint_picker)
app.command("shadow", epilog=shadow.EXAMPLES)(shadow.shadow)
app.command("switch", epilog=shadow.SWITCH_EXAMPLES)(shadow.switch)
app.command("warm-up", epilog=warm_up.EXAMPLES)(warm_up.warm_up)
app.command("reproduce", **studies.FORWARDED)(studies.reproduce)
app.command("bench", **studies.FORWARDED)(studies.bench)
app.command("leaderboard", **studies.FORWARDED)(studies.leaderboard)


def join_lines(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' help: Typer keeps the source's breaks but in the first one."""
    for command in commands.registered_commands:
        text = inspect.cleandoc(command.help or getattr(command.callback, "__doc__", None) or "")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            join_lines(group.typer_instance)


join_lines(app)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"servegym {__version__} (kernels {kernels_digest()})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def servegym(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # shown before this is called
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> NoReturn:
    """Run the command line and exit."""
    run_app(with_only(sys.argv[1]) if len(sys.argv) > 1 else app)


def with_only(name: str) -> typer.Typer:
    """Make the command line with the command of this name only, as making all takes 0.1 s; with all for other names."""
    commands = [one for one in app.registered_commands if one.name == name]
    groups = [one for one in app.registered_groups if one.name == name]
    if not commands and not groups:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone


def kernels_digest() -> str:
    """Compute the digest of the sources with kernels: two installs with the same digest make the same decisions.

    The first 12 hexadecimal digits of the SHA-256 of each file's path and text, in order of the paths.
    """
    digest = hashlib.sha256()
    for folder in KERNELS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]

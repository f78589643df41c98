"""The `servegym` command: its sub-commands, and how errors end."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from servegym import __version__
from servegym.cli import (
    bench,
    calibrate,
    compare,
    dataset,
    devices,
    evaluate,
    export,
    goodput,
    headroom,
    leaderboard,
    plan,
    profile,
    proxy,
    replay,
    reproduce,
    score,
    shadow,
    simulate,
    trace,
    train,
    tune,
    validate,
    warm_up,
)  # fmt: skip
from servegym.cli.full_disks import file_of
from servegym.cli.interruption import INTERRUPTED, Interrupted
from servegym.errors import ServegymError

WRONG_INPUT = 2

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
app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("dataset", epilog=dataset.EXAMPLES)(dataset.dataset)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("score", epilog=score.EXAMPLES)(score.score)
app.command("headroom", epilog=headroom.EXAMPLES)(headroom.headroom)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("reproduce", epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.add_typer(leaderboard.app, name="leaderboard")
app.add_typer(trace.app, name="trace")
app.add_typer(profile.app, name="profile")
app.command("devices", epilog=devices.EXAMPLES)(devices.devices)
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("proxy", epilog=proxy.EXAMPLES)(proxy.proxy)
app.command("shadow", epilog=shadow.EXAMPLES)(shadow.shadow)
app.command("switch", epilog=shadow.SWITCH_EXAMPLES)(shadow.switch)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.command("warm-up", epilog=warm_up.EXAMPLES)(warm_up.warm_up)


def show_version(wanted: bool) -> None:
    if wanted:
        from servegym.cli.version import kernels_digest

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
    """Run the command line and exit: 0, 2 with one line for wrong input, 130 when interrupted."""
    try:
        status = app(standalone_mode=False) or 0
        if status == INTERRUPTED:  # typer has swallowed the KeyboardInterrupt
            raise Interrupted("nothing of it is kept; give the same command again")
    except Interrupted as error:
        end(f"interrupted: {error}", INTERRUPTED)
    except ServegymError as error:
        end(str(error), WRONG_INPUT)
    except OSError as error:
        file = file_of(error)
        end(f"{file}: {error.strerror or error}" if file else str(error), WRONG_INPUT)
    except Exception as error:
        # A usage error of typer, by what it can do: where its class lives depends on typer's version.
        if not hasattr(error, "format_message"):
            raise
        end(error.format_message(), WRONG_INPUT)
    sys.exit(status)


def end(message: str, status: int) -> NoReturn:
    """Say on one line of standard error why this is the end."""
    print("servegym:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)

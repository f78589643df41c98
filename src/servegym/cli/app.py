"""The `servegym` command and its sub-commands."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from servegym import __version__
from servegym.cli.ending import run_app
from servegym.cli.quick_options import QuickCommand, QuickGroup

PACKAGE = Path(__file__).parents[1]
KERNELS = ("simulator", "latency_models/forms", "baselines", "envs")  # folders with kernels
# In the order of the help. A command `a-b` is the function `a_b`, a group the Typer `app` of its module.
COMMANDS = (
    "simulate", "compare", "goodput", "plan", "recommend", "tune", "train", "dataset", "evaluate", "score", "headroom",
    "export", "policies", "devices", "validate", "calibrate", "replay", "proxy", "endpoint-picker", "shadow", "switch",
    "warm-up", "reproduce", "bench", "leaderboard",
)  # fmt: skip
GROUPS = ("trace", "profile")
MODULES = {"switch": "shadow", **dict.fromkeys(("reproduce", "bench", "leaderboard"), "studies")}  # others: their own


def command_line(names: Collection[str]) -> typer.Typer:
    """Make the command line with these commands and groups; only their modules are imported."""
    app = typer.Typer(
        name="servegym",
        cls=QuickGroup,
        help="A gym for LLM serving: simulate an engine, compare its schedulers.",
        epilog="Start with: servegym compare",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(servegym)
    for name in COMMANDS:
        if name in names:
            function = name.replace("-", "_")
            module = module_of(name)
            examples = getattr(module, "SWITCH_EXAMPLES" if name == "switch" else "EXAMPLES", None)
            settings = getattr(module, "FORWARDED", {"epilog": examples, "cls": QuickCommand})
            app.command(name, **settings)(getattr(module, function))
    for name in GROUPS:
        if name in names:
            app.add_typer(module_of(name).app, name=name)
    join_lines(app)
    return app


def module_of(name: str) -> Any:
    return importlib.import_module(f"servegym.cli.{MODULES.get(name, name.replace('-', '_'))}")


@functools.cache
def whole() -> typer.Typer:
    """Make the command line with all commands, which takes 0.1 s: this module's `app`."""
    return command_line((*COMMANDS, *GROUPS))


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return whole()


def join_lines(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' help: Typer keeps the source's breaks but in the first one."""
    for command in commands.registered_commands:
        text = inspect.cleandoc(command.help or getattr(command.callback, "__doc__", None) or "")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            join_lines(group.typer_instance)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"servegym {__version__} (kernels {kernels_digest()})")
        raise typer.Exit


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
    run_app(with_only(sys.argv[1]) if len(sys.argv) > 1 else whole())


def with_only(name: str) -> typer.Typer:
    """Make the command line with the command of this name only; with all for other names."""
    return command_line((name,)) if name in COMMANDS + GROUPS else whole()


def kernels_digest() -> str:
    """Compute the digest of the sources with kernels: two installs with the same digest make the same decisions.

    The first 12 hexadecimal digits of the SHA-256 of each file's path and text, in order of the paths.
    """
    digest = hashlib.sha256()
    for folder in KERNELS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]

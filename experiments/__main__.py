"""`python -m experiments`: the studies that have a command line of their own. Others: `python -m experiments.NAME`."""

from typing import NoReturn

import typer

from experiments import bench, reproduce, validate
from experiments.leaderboard import command as leaderboard
from servegym.cli.ending import run_app

app = typer.Typer(
    name="experiments",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("reproduce", epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.add_typer(leaderboard.app, name="leaderboard")
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)


def main() -> NoReturn:
    run_app(app)


if __name__ == "__main__":
    main()

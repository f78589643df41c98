"""Options that typer does not hand to pydantic take the values that typer would give them."""

import subprocess
import sys
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from servegym.cli.quick_options import QuickCommand


def halved(text: str) -> float:
    if text == "odd":
        raise typer.BadParameter("odd has no half")
    return float(text) / 2.0


def shouted(value: str | None) -> str | None:
    return value and value.upper()


def command(
    half: Annotated[float | None, typer.Option(parser=halved)] = None,
    many: Annotated[list[str] | None, typer.Option()] = None,
    halves: Annotated[list[float] | None, typer.Option(parser=halved)] = None,
    loud: Annotated[str, typer.Option(callback=shouted)] = "quiet",
    count: Annotated[int, typer.Option(min=1)] = 3,
    switch: Annotated[bool | None, typer.Option()] = None,
) -> None:
    print([half, many, halves, loud, count, switch])


def said(words: str, **settings: type) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command(**settings)(command)  # type: ignore[arg-type]
    done = CliRunner().invoke(app, words.split())
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "words",
    ["", "--half 3 --count 4", "--many a --many b --halves 1 --halves 2 --no-switch", "--loud no --switch",
     "--half odd", "--half x", "--halves 1 --halves odd", "--count 0", "--half", "--help"],
)  # fmt: skip
def test_values_and_messages_are_those_of_typer(words):
    assert said(words, cls=QuickCommand) == said(words)


def test_a_run_imports_neither_pydantic_nor_other_commands():
    code = "import sys; from servegym.cli.app import run; sys.argv[1:] = ['simulate', '--rate', '5', '--requests', '9']"
    end = "\ntry: run()\nfinally: print([one for one in ('pydantic', 'servegym.cli.compare') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

"""Every `servegym` command on a page is understood as it is written there; those that only simulate run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from servegym.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIMULATES = ("simulate ", "compare ")
OF_FILES = re.compile(r"\w\.(csv|jsonl?|yaml|py|html|parquet)\b|learned:|--ray|per-token")  # that only the reader has
COMMAND = re.compile(r"^(?:    |\$ )(?:[A-Z_]+=\S+ )*servegym (.+)$", flags=re.MULTILINE)


def commands_of(page: Path) -> list[str]:
    """Those of its code blocks, indented or as on a console; a line that ends in a backslash goes on in the next."""
    return COMMAND.findall(re.sub(r"\\\n\s*", " ", page.read_text("utf-8")))


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    for text in commands_of(page):
        words, command = shlex.split(text, comments=True), get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command.name != "servegym" or words[0].startswith("-"), f"{page.name}: there is no servegym {text}"
        command.make_context(str(command.name), words)  # raises for an option or a value that there is not


def simulations_of(page: Path) -> list[str]:
    return [text for text in commands_of(page) if text.startswith(SIMULATES) and not OF_FILES.search(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if simulations_of(page)], ids=lambda page: page.name)
def test_the_simulations_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are written, of fewer requests."""
    monkeypatch.chdir(tmp_path)
    for text in simulations_of(page):
        less = ["--requests", "30", *(["--seeds", "1"] if text.startswith("compare") else [])]
        done = CliRunner().invoke(app, [*shlex.split(text, comments=True), *less])
        assert done.exit_code == 0, f"servegym {text}: {done.exception!r}"


def test_pages_have_simulations_that_are_found() -> None:
    assert len(simulations_of(ROOT / "docs" / "clusters.md")) == 9

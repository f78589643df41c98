"""Every `servegym` command on a page is understood as it is written there; those that only simulate run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from experiments.__main__ import app as studies
from servegym.cli.app import app
from tests.pages import ENGINE_PAGES, PAGES, ROOT, commands_of, shell_commands_of

SERVEGYM, STUDIES = get_command(app), get_command(studies)
SIMULATES = ("simulate ", "compare ")
OF_FILES = re.compile(r"\w\.(csv|jsonl?|yaml|py|html|parquet)\b|learned:|--ray|per-token")  # that only the reader has


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    for text in commands_of(page):
        words = shlex.split(text, comments=True)
        command = STUDIES if words[0] in ("reproduce", "bench", "leaderboard") else SERVEGYM
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command.name not in ("servegym", "experiments") or words[0].startswith("-"), (
            f"{page.name}: no command {text}"
        )
        command.make_context(str(command.name), words)  # raises for an option or a value that there is not


def simulations_of(page: Path) -> list[str]:
    return [text for text in commands_of(page) if text.startswith(SIMULATES) and not OF_FILES.search(text)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if simulations_of(page)], ids=lambda page: page.name)
def test_the_simulations_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are written, of fewer requests."""
    monkeypatch.chdir(tmp_path)
    for text in simulations_of(page):
        less = ["--requests", "30", *(["--seeds", "1"] if text.startswith("compare") else [])]
        done = CliRunner().invoke(app, [*shlex.split(text, comments=True), *less])
        assert done.exit_code == 0, f"servegym {text}: {done.exception!r}"


def test_pages_have_simulations_that_are_found() -> None:
    assert len(simulations_of(ROOT / "docs" / "clusters.md")) == 7


def test_commands_of_the_engines_pages_are_found() -> None:
    """Those that experiments/engines/engines_test.sh runs: a program that is not known there would be passed over."""
    assert {page.stem: len(shell_commands_of(page)) for page in ENGINE_PAGES} == {
        "study_to_engine": 17, "vllm": 3, "vllm-parity": 12, "emulation": 5, "proxy": 8, "proxy-load": 2,
    }  # fmt: skip

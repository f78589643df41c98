"""`python -m experiments`, called in this process."""

import sys
from pathlib import Path

import pytest

from experiments.__main__ import main
from tests.cli.conftest import Command, Ended


@pytest.fixture
def study(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """study(argument, ...) runs a study's command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["experiments", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return Ended(end.value.code, *capsys.readouterr())

    return call

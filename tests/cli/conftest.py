"""The command line, called in this process (quick) or in one of its own (where a process matters)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from servegym.baselines import registry
from servegym.cli.app import run
from servegym.simulator.policies import policy as policies


class Ended(NamedTuple):
    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The JSON document on standard output of a command that succeeded."""
        assert self.status == 0, self.stderr
        return json.loads(self.stdout)

    @property
    def refusal(self) -> str:
        """The one line in which a command refuses wrong input, with exit status 2."""
        assert (self.status, self.stdout) == (2, ""), self
        assert self.stderr.startswith("servegym: ") and self.stderr.count("\n") == 1, self.stderr
        return self.stderr


Command = Callable[..., Ended]


@pytest.fixture
def servegym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """servegym(argument, ...) in an empty folder, without a new process; it forgets the policies loaded from files."""
    monkeypatch.chdir(tmp_path)
    registry.load()
    monkeypatch.setattr(policies, "_registry", dict(policies._registry))

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["servegym", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            run()
        said = capsys.readouterr()
        # Whether a kernel is compiled, and for so long that it is said, depends on which tests ran before, and on what.
        lines = [line for line in said.err.splitlines(keepends=True) if not line.startswith("servegym: compil")]
        return Ended(end.value.code, said.out, "".join(lines))

    return call


@pytest.fixture
def servegym_process(tmp_path: Path) -> Command:
    """servegym(argument, ...) in an empty folder, in a process of its own."""

    def call(*arguments: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "servegym", *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return call

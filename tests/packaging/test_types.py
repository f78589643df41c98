"""Types at the public surface, as mypy sees them from a user's file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_users_file_is_checked_by_its_types() -> None:
    """Without errors, and without a "type: ignore" that is not needed: what is wrong there is found."""
    command = [
        sys.executable, "-m", "mypy", "--config-file=", "--strict", "--follow-imports=silent",
        "--ignore-missing-imports", "--cache-dir", str(ROOT / ".mypy_cache/user_code"), "tests/packaging/user_code.py",
    ]  # fmt: skip
    env = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (ROOT / "src/servegym/py.typed").is_file()

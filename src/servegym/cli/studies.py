"""`servegym reproduce`, `bench`, `leaderboard`: run studies of a clone (`python -m experiments`) from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import typer

from servegym.errors import ExperimentError
from servegym.extras import clone_root

# Arguments and --help are passed on to the study.
FORWARDED: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
}


def reproduce(context: typer.Context) -> int:
    """Measure the papers' claims (in a clone: python -m experiments reproduce)."""
    return run_study("reproduce", context.args)


def bench(context: typer.Context) -> int:
    """Measure the simulator's speed on this machine, with a bound for each figure (in a clone)."""
    return run_study("bench", context.args)


def leaderboard(context: typer.Context) -> int:
    """Scores of policies, measured in the same way: write the page, add an entry, verify one (in a clone)."""
    return run_study("leaderboard", context.args)


def run_study(command: str, arguments: list[str]) -> int:
    """Run `python -m experiments COMMAND ...` with the clone's root on the path; returns its exit status.

    Raises ExperimentError if the package was not installed from a clone.
    """
    root = clone_root()
    if root is None:
        raise ExperimentError(
            f"{command} is a study in the repository, which is not part of the installed package; run it in a clone: "
            f"pip install -e . && python -m experiments {command}"
        )
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-P", "-m", "experiments", command, *arguments], env=os.environ | {"PYTHONPATH": path}
    ).returncode

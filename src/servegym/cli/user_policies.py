"""`--load-policies` and `--check`: files of policies are imported for what they register, and checked first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servegym.evaluation import policy_files


def load_policy_files(paths: Iterable[Path] | None, check: bool | None = None) -> None:
    """Import each file, and check those that have not passed since they were changed.

    check: True: check them all again; False: none. Raises PolicyError for a file that is missing, raises, or does not
    pass.
    """
    paths = list(paths or ())
    policy_files.load_policy_files(paths)
    if check is False or not paths:
        return
    from servegym.evaluation.policy_checks.checking import check_policy

    for path in dict.fromkeys(path.resolve() for path in paths):
        check_policy(path, again=check is True)

"""Where a command's runs are done: `--jobs` and `--ray`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.evaluation import policy_files
from servegym.evaluation.policy_files import PolicyFiles

if TYPE_CHECKING:
    from servegym.evaluation.running import Runner


@contextlib.contextmanager
def runner_of(jobs: int | None, ray: str | None, policy_files: Iterable[Path] | None = None) -> Iterator[Runner]:
    """What runs: threads, or Ray where `--ray` says so, to which files of policies go along.

    jobs: None: one a core. Raises ClusterError for a cluster that cannot be used.
    """
    if ray is None:
        from servegym.evaluation.running import ThreadRunner

        yield ThreadRunner(jobs)
        return
    from servegym.evaluation.ray_running import RayRunner

    files = PolicyFiles.read(policy_files)
    with RayRunner(ray, jobs, files.load if files.texts else None) as runner:
        yield runner


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

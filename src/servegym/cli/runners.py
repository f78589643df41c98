"""Where a command's runs are done: `--jobs` and `--ray`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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

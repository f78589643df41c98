"""Runs of a study outside the product, kept in a file as they come; a stopped study goes on from it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import Progress

from servegym.evaluation.identity import code_digests, versions
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.running import ThreadRunner
from servegym.scenarios.building import workload_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy

Run = TypeVar("Run")


@functools.lru_cache(maxsize=2)  # runs of one workload come one after the other
def served(cell: NamedTuple, seed: int, requests: int) -> tuple[ServingSpec, Workload]:
    """cell: fields of a spec."""
    spec = ServingSpec().replaced(**cell._asdict(), requests=requests)
    return spec, workload_of(spec, seed)


class Kept(NamedTuple):
    """A file of rows. study: all that the rows depend on, but for versions and for the code of policies and of a
    deployment like those of the runs."""

    path: Path
    study: Mapping[str, Any]
    policies: Iterable[Policy]
    deployment: Any

    def rows(
        self, runs: Iterable[Run], run_of: Callable[[Row], Run], measured: Callable[[Run], Row], title: str
    ) -> list[Row]:
        """The row of each run, with a bar. run_of: the run of a row, which it has under "run".

        Raises ExperimentError for a file of another study.
        """
        identity = {**self.study, "versions": versions(), "code": code_digests(self.policies, self.deployment)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(title)
            return kept_rows(
                Ledger(self.path, identity, lambda row: None if "run" in row else "it says no run"),
                {run: run for run in runs}, run_of, measured,
                lambda done, of: bar.update(task, completed=done, total=of), ThreadRunner(1),
            )  # fmt: skip

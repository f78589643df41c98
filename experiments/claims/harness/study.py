"""The study of a claim: its cells run, each row kept as it comes, then the verdicts of its settings."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.claims.harness.cells import Cell, cell_of, deployment_of
from experiments.claims.harness.outcome import Outcome, SettingOutcome
from experiments.claims.harness.registry import Claim
from experiments.claims.harness.served import noting, of_cell
from experiments.claims.harness.settings import Size, workload
from experiments.claims.harness.timelines import URGENCY
from experiments.without_steps import scheduler_without_steps
from servegym.baselines.registry import router as find_router
from servegym.evaluation.identity import code_digests, deployment_digest, document_digest, versions
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.running import Runner, ThreadRunner
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

Progress = Callable[[int, int], None]  # (cells done, cells in all)


class Study:
    """A claim at a size, in the settings of its own where it has such."""

    def __init__(self, claim: Claim, size: Size):
        self.claim = claim
        self.size = size = claim.sized(size)
        cells = [cell for setting in size.settings for cell in claim.cells(setting, size)]
        # Neighbours serve the same requests, which are then made once.
        self.cells = sorted(dict.fromkeys(cells), key=_workload_of)
        self._known = set(self.cells)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All that the rows depend on."""
        policies = [
            scheduler_without_steps(text) for text in sorted({cell.scheduler for cell in self.cells} | {URGENCY})
        ]
        policies += [find_router(text) for text in sorted({cell.router for cell in self.cells if cell.router})]
        deployments = {
            " ".join(filter(None, serving)): deployment_of(*serving)
            for serving in sorted({(cell.device, cell.engines, cell.operators) for cell in self.cells})
        }
        return {
            "claim": self.claim.id,
            "seeds": list(self.size.seeds),
            "cells": document_digest([list(cell) for cell in self.cells], 16),
            "measure": self.claim.measure_digest,
            "versions": versions(),
            "code": {name: code_digests(policies, deployment) for name, deployment in deployments.items()},
            "deployments": {name: deployment_digest(deployment) for name, deployment in deployments.items()},
            "workloads": {
                f"{setting.name} {slo}".strip(): workload(
                    setting, 1.0, self.size.seeds[0], self.size.requests_of(setting), slo=slo
                ).digest
                for setting, slo in sorted({(cell.setting, cell.slo) for cell in self.cells})
            },
        }

    def ledger_path(self, directory: Path) -> Path:
        """A file of its own for each identity: what was measured by other code, at another size or of other seeds is
        left alone. It is named by the first seed too."""
        name = f"{self.claim.id}-{self.size.name}-{self.size.seeds[0]}-{document_digest(self.identity)}.jsonl"
        return directory / "cells" / name

    def row_problem(self, row: Row) -> str | None:
        """What is wrong with a row that should be one of this study's; None if nothing is."""
        cell = cell_of(row)
        return None if cell in self._known else f"{cell} is not part of {self.claim.id}"

    def run(
        self, directory: Path, progress: Progress, jobs: int = 1, fresh: bool = False, runner: Runner | None = None
    ) -> Outcome:
        """Run what is not done yet and judge it all. The outcome is the same however many run at a time, and wherever.

        jobs: at a time, in threads of this process. runner: where they are done instead.

        An interrupt (KeyboardInterrupt) ends it when the runs that are under way are done, and leaves the rows.
        """
        path = self.ledger_path(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(path, self.identity, self.row_problem, fresh)
        items, where = {cell: cell for cell in self.cells}, runner or ThreadRunner(jobs)
        return self.judged(kept_rows(ledger, items, cell_of, self._row, progress, where, prepare=self._compile))

    def judged(self, rows: list[Row]) -> Outcome:
        """The outcome that rows, one for each cell, add up to."""
        served = [{"family": row["family"], "device": row["device"], "load": row["load"], "served": row.get("served")}
                  for row in rows]  # fmt: skip
        table = pd.DataFrame([{name: value for name, value in row.items() if name != "served"} for row in rows])
        place = {cell: index for index, cell in enumerate(self.cells)}
        of_settings = [
            table.iloc[sorted({place[cell] for cell in self.claim.cells(setting, self.size)})]
            for setting in self.size.settings
        ]
        outcomes = [
            SettingOutcome(setting, self.claim.judge(of_one))
            for setting, of_one in zip(self.size.settings, of_settings, strict=True)
        ]
        whole = pd.concat(of_settings, ignore_index=True)
        return Outcome(self.claim, self.size, outcomes, whole, pd.DataFrame(served))

    def _compile(self) -> None:
        """Run each scheduler and router once on one request: kernels are compiled in one thread, before any of the
        work."""
        one = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [2]})
        for device, engines, scheduler, router in {
            (cell.device, cell.engines, cell.scheduler, cell.router) for cell in self.cells
        }:
            deployment = deployment_of(device, engines)
            routing = find_router(router) if router else None
            Simulation(Scenario(one, deployment, scheduler_without_steps(scheduler), router=routing)).run()

    def _row(self, cell: Cell) -> Row:
        with noting(cell.device) as noted:
            measured = self.claim.measure(cell)
        return {**cell._asdict(), **measured, "served": of_cell(noted)}


def _workload_of(cell: Cell) -> tuple[str | float, ...]:
    return (*cell.setting, cell.engines, cell.arrivals, cell.slo, cell.load, cell.seed)

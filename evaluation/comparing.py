"""Runs a comparison, each run once, and keeps each row at once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from servegym.evaluation.comparison import Cell, Comparison
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.measures import CLIENTS, axis_of
from servegym.evaluation.repeats import COLUMN
from servegym.evaluation.running import Progress, Runner, ThreadRunner
from servegym.scenarios.building import scenario_of
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

CELLS_FILE = "cells.jsonl"


def run_comparison(
    comparison: Comparison,
    directory: str | Path,
    progress: Progress = lambda done, cells: None,
    *,
    jobs: int = 1,
    runner: Runner | None = None,
    fresh: bool = False,
) -> pd.DataFrame:
    """Run the cells that are not done yet and return one row a cell, in the order of `comparison.cells`.

    directory: rows are kept in its `cells.jsonl` as they come. Cells that it holds for the same comparison are not run
    again, unless `fresh`. jobs: number of runs at a time, in threads of this process; runner: runs them instead.
    Neither changes the results.

    Raises ExperimentError when the directory holds another comparison, and as `Comparison` does. An interrupt
    (KeyboardInterrupt) drops the runs that are under way, and leaves the rows.
    """
    rows = kept_rows(
        Ledger(Path(directory) / CELLS_FILE, comparison.identity, comparison.row_problem, fresh),
        {cell: cell for cell in comparison.cells}, cell_of, comparison.run, progress, runner or ThreadRunner(jobs),
        prepare=lambda: compile_kernels(comparison),
    )  # fmt: skip
    return pd.DataFrame(rows).assign(**{COLUMN: comparison.repeats.over})


def cell_of(row: Row) -> Cell:
    return Cell(row["scheduler"], row[axis_of(row)], row["seed"])


def compile_kernels(comparison: Comparison) -> None:
    """Serve two requests under each candidate: kernels are compiled here, in one thread, before the work."""
    for candidate in comparison.candidates.values():
        one = comparison.spec_of(candidate)
        serve_two(one.with_values({CLIENTS: comparison.points[0]}) if comparison.axis == CLIENTS else one)


def serve_two(spec: ServingSpec) -> None:
    """Serve two short requests, which compiles the kernels that the spec needs."""
    two = Workload.from_columns({"arrival_s": [0.0, 0.0], "prompt_tokens": [1, 1], "output_tokens": [2, 2]})
    Simulation(scenario_of(spec, two, deployment_of(spec), noise_seed=0)).run()

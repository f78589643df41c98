"""Is expected-gain better where it tunes itself? On traces that policies here are trained on, drawn at random.

    python -m experiments.self_tuning docs/results/self-tuning.md

Hypotheses: self_tuning.md. Runs are kept in --ledger, from which the same command goes on.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.kept_runs import Kept, served
from servegym.baselines.registry import scheduler
from servegym.evaluation.figures import figures
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.ledger import Row
from servegym.evaluation.markdown import table
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_name("self_tuning.md")
DEVICES = (
    "a100-llama3-8b", "h100-llama3-8b", "a6000-llama3.1-8b", "ascend910b-qwen2-7b", "a100-qwen1.5-7b",
    "a100-qwen2.5-14b-tp2", "ascend910b-qwen3-8b", "a100-llama3-70b-tp8",
)  # fmt: skip
TRACES = ("azure-conv", "sharegpt", "polyserve-mooncake-toolagent", "flowprefill", "qoserve-long", "uniform-4096-1024")
LOADS = (0.3, 0.7, 1.0, 1.4)
FIRST_SEED, CELLS_SEED = 310_000, 5
BASE, TUNED = POLICIES = ("expected-gain", "self-tuned:expected-gain")
FIGURES = {
    "tdg_ratio": "TDG ratio",
    "slo_attainment": "SLO attainment",
    "starved": "starved",
    "ttft_p99_s": "TTFT p99, s",
}


class Cell(NamedTuple):
    device: str
    trace: str
    load: float


class Run(NamedTuple):
    policy: str
    cell: Cell
    seed: int


def cells(count: int) -> list[Cell]:
    """So many of all combinations, drawn at random."""
    everything = [Cell(*values) for values in itertools.product(DEVICES, TRACES, LOADS)]
    return [everything[i] for i in np.random.default_rng(CELLS_SEED).permutation(len(everything))[:count]]


def measured(run: Run, requests: int) -> Row:
    spec, workload = served(run.cell, run.seed, requests)
    simulation = Simulation(spec.with_values({"scheduler": run.policy}).build(run.seed, workload=workload))
    found = figures(simulation.run())
    changes = 0
    if simulation.tuner is not None:
        chosen = [index for _, index in simulation.tuner.chosen]
        changes = sum(before != after for before, after in itertools.pairwise(chosen))
    return {
        "run": [run.policy, list(run.cell), run.seed],
        "changes": changes,
        **{figure: found[figure] for figure in FIGURES},
    }


def run_of(row: Row) -> Run:
    policy, cell, seed = row["run"]
    return Run(policy, Cell(*cell), seed)


def page(rows: Sequence[Row], requests: int) -> str:
    """The page in Markdown."""
    found = {run_of(row): row for row in rows}
    pairs = [(found[run], found[run._replace(policy=TUNED)]) for run in found if run.policy == BASE]
    lines = []
    for load in (*LOADS, None):
        these = [pair for pair in pairs if load in (None, run_of(pair[0]).cell.load)]
        if not these:
            continue
        line = ["all" if load is None else f"load {load:g}", str(len(these))]
        for figure in FIGURES:
            before, after = (np.array([pair[i][figure] for pair in these], "f8") for i in (0, 1))
            digits = 0 if figure == "ttft_p99_s" else 4
            change = student_interval(after - before)
            line += [f"{before.mean():.{digits}f}", change.text(f"+.{digits}f")]
        lines.append(line)
    below = [run_of(base).cell for base, own in pairs if own["slo_attainment"] < base["slo_attainment"] - 0.01]
    changed = sum(own["changes"] > 0 for _, own in pairs)
    headings = [words for name in FIGURES.values() for words in (f"{name}: {BASE}", "tuning itself less it")]
    return "\n".join(
        [
            "# Self-tuning on the traces that policies are trained on\n",
            WORDS.read_text(encoding="utf-8"),
            "## What was measured\n",
            f"`python -m experiments.self_tuning docs/results/self-tuning.md`: {len(pairs)} of "
            f"{len(DEVICES) * len(TRACES) * len(LOADS)} cells ({len(DEVICES)} devices, {len(TRACES)} traces, "
            f"{len(LOADS)} loads), {requests} requests a run, one seed each; means and 95 % intervals over cells "
            "(Student).\n",
            table(["", "cells", *headings], lines),
            f"It changed its parameters in {changed} of {len(pairs)} runs. SLO attainment is more than a point below "
            f"in {len(below)}{': ' + '; '.join(' '.join(map(str, cell)) for cell in below) if below else ''}.\n",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--cells", type=int, default=44, help="how many are drawn")
    parser.add_argument("--requests", type=int, default=1000, help="of a run")
    parser.add_argument("--ledger", type=Path, default=Path("results/self-tuning.jsonl"))
    asked = parser.parse_args(arguments)
    drawn, requests = cells(asked.cells), asked.requests
    runs = [Run(policy, cell, FIRST_SEED + i) for i, cell in enumerate(drawn) for policy in POLICIES]
    deployment = served(drawn[0], FIRST_SEED, requests)[0].build(FIRST_SEED).deployment
    kept = Kept(asked.ledger, {"what": "self-tuning", "requests": requests}, [scheduler(TUNED)], deployment)
    rows = kept.rows(runs, run_of, lambda run: measured(run, requests), "self-tuning")
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    asked.page.write_text(page(rows, requests), encoding="utf-8")


if __name__ == "__main__":
    main()

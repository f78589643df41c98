"""The results of a training: the best policy so far and the curve; at the end a policy, a plot and a summary."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servegym.baselines.artifact import files
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network
from servegym.tuners.config import TrainingConfig
from servegym.tuners.problem import Problem
from servegym.tuners.runs import PICTURE, POLICY, RunFolder, versions

Progress = Callable[[float, str], None]  # share of the budget used, message


def in_whole(steps: int, part: int) -> int:
    """Round a number of steps up to whole parts: rollouts, generations."""
    return -(-steps // part) * part


class Stopped(Exception):
    """Ctrl-C stopped the training after a checkpoint. steps: number done."""

    def __init__(self, steps: int):
        super().__init__(f"{steps:,} steps are kept")
        self.steps = steps


@dataclasses.dataclass
class State:
    """The state of a training, except for the model."""

    elapsed_s: float = 0.0
    cpu_s: float = 0.0  # processor time of this process, with all its threads and compilation
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # of the curve
    best: Network | None = None
    best_row: dict[str, Any] = dataclasses.field(default_factory=dict)


class Stopwatch:
    """Adds elapsed time to the times of a state."""

    def __init__(self, state: State):
        self.state = state
        self._begun_s = time.perf_counter() - state.elapsed_s
        self._cpu_begun_s = time.process_time() - state.cpu_s

    def read(self) -> float:
        """Write the times into the state; returns elapsed seconds."""
        self.state.elapsed_s = time.perf_counter() - self._begun_s
        self.state.cpu_s = time.process_time() - self._cpu_begun_s
        return self.state.elapsed_s


def finish(problem: Problem, folder: RunFolder, state: State, policy: LearnedPolicy | None = None) -> LearnedPolicy:
    """Write the best policy, the picture and the summary. policy: the best one; None: with the best network."""
    assert state.best is not None
    row = state.best_row
    policy = problem.head.policy(state.best) if policy is None else policy
    how = validation_provenance(row) | {"cpu_minutes": state.cpu_s / 60}
    files.save_policy(policy, folder.path / POLICY, provenance(problem, **how))
    title = f"{problem.config.name}: {problem.head.base.label} with what was learned upon it"
    plot_curve(state.rows, title, folder.path / PICTURE)
    last = state.rows[-1]
    folder.write_summary(
        {
            "training": problem.config.name, "algorithm": problem.config.algorithm,
            "environment": problem.config.environment, "base": problem.head.base.label,
            "steps": last["steps"], "minutes": state.elapsed_s / 60, "cpu_minutes": state.cpu_s / 60,
            "weights": state.best.shape.count,
            "best_at_steps": row["steps"], "validation": validation_provenance(row)["validation"],
            "policy": str(folder.path / POLICY), "picture": str(folder.path / PICTURE),
            "notes": problem.notes,
        }
    )  # fmt: skip
    return policy


def validation_provenance(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row of the curve for an artifact's provenance."""
    validation = {f"{name}_tdg_ratio": row[name] for name in ("policy", "base", "difference", "half_width")}
    attained = ("attainment", "attainment_difference", "attainment_half_width")
    validation |= {name: row[name] for name in attained if name in row}  # a curve of an earlier release lacks some
    return {"steps": row["steps"], "minutes": row["minutes"], "validation": validation}


def save_policy(problem: Problem, network: Network, path: Path, **how: Any) -> LearnedPolicy:
    """Write the network's policy and its provenance to a .json file; returns the policy.

    how: further provenance: steps, minutes, validation.
    """
    policy = problem.head.policy(network)
    files.save_policy(policy, path, provenance(problem, **how))
    return policy


def provenance(problem: Problem, **how: Any) -> dict[str, Any]:
    """The provenance of a trained artifact: training cases, configuration, versions."""
    config: TrainingConfig = problem.config
    return {
        "trained_on": problem.trained_on,
        "training": config.name,
        "algorithm": config.algorithm,
        "environment": config.environment,
        "seed": config.seed,
        **how,
        "config": config.to_json(),
        "versions": versions(),
    }


DOTS_PER_INCH = 150


def plot_curve(rows: Sequence[Mapping[str, Any]], title: str, path: str | Path) -> Path:
    """Plot the difference to the base over time as a PNG; returns `path`.

    rows: in order of time, each with minutes, base, difference and half_width (`validation.Verdict`), and is_best.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axes = figure.subplots()
    minutes = [row["minutes"] for row in rows]
    points = [100 * row["difference"] for row in rows]
    low = [100 * (row["difference"] - row["half_width"]) for row in rows]
    high = [100 * (row["difference"] + row["half_width"]) for row in rows]
    axes.axhline(0.0, color="0.4", linewidth=1, linestyle="--", label="the base policy")
    axes.fill_between(minutes, low, high, color="0.85", label="95 % interval of the mean", linewidth=0)
    axes.plot(minutes, points, color="black", linewidth=1.5, marker="o", markersize=3, label="the policy")
    best = [row for row in rows if row["is_best"]]
    if best:
        last = best[-1]
        axes.plot(
            last["minutes"], 100 * last["difference"], "o", markersize=9, color="black", markerfacecolor="none",
            label=f"kept: {100 * last['difference']:+.2f} points, base {last['base']:.3f}",
        )  # fmt: skip
    axes.set_title(textwrap.fill(title, 72), fontsize=11, loc="left")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("TDG ratio on validation scenarios,\npoints above the base policy")
    axes.grid(color="0.9", linewidth=0.6, zorder=0)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)

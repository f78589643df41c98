"""A learned router beside every router that ships, on the scenarios of its training that it has not seen.

    servegym train maskable-ppo-mixed-fleet --out results/train/maskable-ppo-mixed-fleet
    python -m experiments.learned_routers results/train/maskable-ppo-mixed-fleet

Prints a table in Markdown: the same scenarios of split `test` for all, means, and differences to the training's base
with their 95 % intervals. Of a configuration's name it is the table of the rules alone.
"""

import math
from pathlib import Path

import numpy as np
import typer

from experiments.environments.rules import rules_of
from servegym.baselines.artifact.files import load_artifact
from servegym.evaluation.intervals import Interval
from servegym.evaluation.markdown import table
from servegym.tuners.config import ValidationConfig, load_config
from servegym.tuners.problem import problem_of
from servegym.tuners.validation import WITHIN_95, Judge

FIRST_SEED, SCENARIOS = 8_000_000, 64
COLUMNS = ("router", "TDG ratio", "less the base", "SLO attainment", "p99 of the wait, s")


def rows(training: str, scenarios: int, first_seed: int) -> list[tuple[str, ...]]:
    """A row for the training's base, then the others, those with the most TDG first."""
    folder = Path(training)
    trained = folder.is_dir()
    problem = problem_of(load_config(folder / "config.yaml" if trained else training))
    base = str(problem.source.specs[0]["router"])
    judge = Judge(
        problem.head,
        problem.source.with_overrides({"split": "test"}),
        ValidationConfig(first_seed=first_seed, scenarios=scenarios),
    )
    policies = rules_of("router")
    if trained:
        policies[folder.name] = load_artifact(folder / "policy.json").policy("router")
    outcomes = {name: judge.outcomes(policy) for name, policy in policies.items() if name != base}
    best_first = sorted(outcomes, key=lambda name: -outcomes[name][0].mean())
    return [row(base, judge.base, judge.base), *(row(name, outcomes[name], judge.base) for name in best_first)]


def row(name: str, outcomes: np.ndarray, base: np.ndarray) -> tuple[str, ...]:
    """outcomes, base: float64[4, scenarios], as `Judge.outcomes` gives them."""
    ratio, attainment, wait_s, _ = outcomes.mean(axis=1)
    differences = outcomes[0] - base[0]
    half = WITHIN_95 * differences.std(ddof=1) / math.sqrt(len(differences))
    less = "" if outcomes is base else Interval.about(differences.mean(), half).text("+.3f")
    return f"`{name}`", f"{ratio:.3f}", less, f"{attainment:.3f}", f"{wait_s:.1f}"


def main(training: str, scenarios: int = SCENARIOS, first_seed: int = FIRST_SEED) -> None:
    """Print the table. training: folder of a training of ClusterRouting-v0, or the name of a configuration."""
    print(table(COLUMNS, rows(training, scenarios, first_seed)), end="")


if __name__ == "__main__":
    typer.run(main)

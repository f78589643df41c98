"""Symbolic training: formulas that rank the urgent requests of a base scheduler, by genetic programming.

As in evolution by CMA-ES all candidates of a generation serve the same scenarios, drawn anew for it, the best of a
generation is validated now and then, and training returns the best by validation. All formulas run on one compiled
stack machine, so nothing is compiled for a candidate.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.expression import MOST_NODES, Expression, parsed
from servegym.baselines.learned.formula import by_formula
from servegym.errors import PolicyError, TrainingError
from servegym.evaluation.running import Runner
from servegym.tuners.breeding import Breeding
from servegym.tuners.config import TrainingConfig, from_plain
from servegym.tuners.generations import evolve
from servegym.tuners.outcome import Progress
from servegym.tuners.problem import problem_of
from servegym.tuners.runs import RunFolder

ENVIRONMENT = "RequestRanking-v0"
BASE = "value"  # the formula that is the base


@dataclasses.dataclass(frozen=True)
class SymbolicConfig:
    """`hyperparameters` of the algorithm symbolic.

    population: formulas of a generation. scenarios: that each of them serves. elites: the best, which stay. tournament:
    of so many the best has a child. most_nodes: numbers, features and operations in a formula. formulas: in the first
    population, beside `value`, the base.
    """

    population: int = 24
    scenarios: int = 16
    elites: int = 2
    tournament: int = 3
    most_nodes: int = 25
    formulas: tuple[str, ...] = ()

    @staticmethod
    def of(config: TrainingConfig) -> SymbolicConfig:
        """Raises TrainingError for what cannot be."""
        settings: SymbolicConfig = from_plain(SymbolicConfig, config.hyperparameters, "hyperparameters")
        most = settings.population - 1
        checks = [
            ("population", settings.population >= 4, "4 or more"),
            ("scenarios", settings.scenarios >= 1, "1 or more"),
            ("elites", 0 <= settings.elites < settings.population, f"0 to {most}"),
            ("tournament", settings.tournament >= 1, "1 or more"),
            ("most_nodes", 3 <= settings.most_nodes <= MOST_NODES, f"3 to {MOST_NODES}"),
            ("formulas", len(settings.formulas) <= most, f"{most} at most"),
        ]
        for name, holds, right in checks:
            if not holds:
                raise TrainingError(f"hyperparameters.{name} is {getattr(settings, name)!r}; it should be {right}")
        return settings

    def seeds(self) -> list[Expression]:
        """The formulas to begin with, the base first. Raises TrainingError for one that is none."""
        try:
            return [parsed(text) for text in (BASE, *self.formulas)]
        except PolicyError as error:
            raise TrainingError(f"hyperparameters.formulas: {error}") from None


def train(
    config: TrainingConfig,
    out: str | Path,
    resume: bool = False,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> LearnedPolicy:
    """Train as configured in the folder `out`; returns the policy that was best in validation.

    As `evolution.train`: a step is a scenario served, and a training that is resumed ends as one that was not stopped.
    Raises TrainingError for what cannot be trained, PolicyError for a base that calls nothing urgent, Stopped after
    Ctrl-C.
    """
    settings, seeds = SymbolicConfig.of(config), SymbolicConfig.of(config).seeds()
    if config.environment != ENVIRONMENT or config.start is not None:
        wrong = f"environment is {config.environment!r}; it should be {ENVIRONMENT}"
        if config.environment == ENVIRONMENT:
            wrong = f"start is {config.start!r}; hyperparameters.formulas says what to begin with"
        raise TrainingError(f"algorithm symbolic: {wrong}")
    problem = problem_of(config)
    base = problem.head.base
    by_formula(base, BASE)  # refused before anything is written

    def search() -> Breeding:
        return Breeding(
            seeds, settings.population, settings.elites, settings.tournament, settings.most_nodes, config.seed
        )

    return evolve(
        problem, search, partial(by_formula, base), settings.scenarios, RunFolder(out), resume, progress, runner
    )

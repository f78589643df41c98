"""Samplers and pruners by name, each with a seed. Incompatible choices raise errors before anything runs."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import random
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from servegym.errors import SearchError
from servegym.simulator.policies.policy import Value
from servegym.tuners.search.space import Space
from servegym.tuners.search.workers import index_of

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


class IndexedCmaEs(CmaEsSampler):
    """CMA-ES. Optuna adds the trial's number to the seed; here it is the index, which a retry does not change."""

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        renumbered = copy.copy(trial)
        index = index_of(trial)
        renumbered.number = trial.number if index is None else index
        return super().sample_relative(study, renumbered, search_space)


SAMPLERS = ("tpe", "gp", "cmaes", "nsga2", "grid", "random")
PRUNERS = ("none", "wilcoxon")
NEEDS = {"gp": "torch", "cmaes": "cmaes"}  # packages that Optuna does not require
STARTUP_TRIALS = 10  # random trials before a sampler uses its model
POPULATION = 20  # of NSGA-II: with Optuna's 50, 200 trials would be only four generations
P_THRESHOLD = 0.1  # of Wilcoxon's test, Optuna's default


def check_search(sampler: str, pruner: str, space: Space, objectives: int = 1, constrained: bool = False) -> None:
    """Raise SearchError for an unknown name, a missing package, and choices that do not go together."""
    if sampler not in SAMPLERS:
        raise SearchError(f"unknown sampler {sampler!r}; there are {', '.join(SAMPLERS)}")
    if pruner not in PRUNERS:
        raise SearchError(f"unknown pruner {pruner!r}; there are {', '.join(PRUNERS)}")
    package = NEEDS.get(sampler)
    if package is not None and importlib.util.find_spec(package) is None:
        raise SearchError(f"sampler {sampler} needs a package that is not installed ({package})")
    words = [variable.name for variable in space.variables if variable.choices]
    clashes = [
        (pruner != "none" and objectives > 1,
         f"pruner {pruner} compares trials by one number, and there are {objectives} objectives; take pruner none"),
        (pruner != "none" and sampler in ("gp", "cmaes", "nsga2"),
         f"pruner {pruner} and sampler {sampler}: {sampler} learns from complete trials only; take tpe, grid or "
         "random, or pruner none"),
        (sampler == "cmaes" and objectives > 1,
         f"sampler cmaes has one objective, not {objectives}; take tpe, gp or nsga2"),
        (sampler == "cmaes" and constrained, "sampler cmaes knows no constraints; take tpe, gp or nsga2"),
        (sampler == "cmaes" and len(space.variables) < 2,
         f"sampler cmaes searches two numbers or more, and {space.names[0]} is one; take tpe or gp"),
        (sampler == "cmaes" and len(words) > 0,
         f"sampler cmaes searches numbers, and {', '.join(words)} is not; take tpe, gp or nsga2"),
    ]  # fmt: skip
    for clash, reason in clashes:
        if clash:
            raise SearchError(reason)


def seed_of(seed: int, index: int) -> int:
    """Seed of the sampler of a trial, from the study's seed and the trial's index."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0])


def make_sampler(name: str, seed: int, defaults: Mapping[str, Value] | None = None) -> BaseSampler:
    """Make an Optuna sampler. defaults: starting point of cmaes. The points of a grid are enqueued (`first_points`), so
    its sampler draws nothing."""
    from optuna import samplers

    made: dict[str, Callable[[], Any]] = {
        # Optuna's own default for one objective; for several it has to be asked for.
        "tpe": lambda: samplers.TPESampler(n_startup_trials=STARTUP_TRIALS, multivariate=True, seed=seed),
        # All trials serve the same requests, so the same parameters have the same score.
        "gp": lambda: samplers.GPSampler(n_startup_trials=STARTUP_TRIALS, deterministic_objective=True, seed=seed),
        "cmaes": lambda: IndexedCmaEs(x0=dict(defaults) if defaults else None, seed=seed),
        "nsga2": lambda: samplers.NSGAIISampler(population_size=POPULATION, seed=seed),
        "grid": lambda: samplers.RandomSampler(seed=seed),
        "random": lambda: samplers.RandomSampler(seed=seed),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some of Optuna's features may change
        sampler: BaseSampler = made[name]()
    return sampler


def make_pruner(name: str, groups: int) -> BasePruner:
    """Make an Optuna pruner. groups: number of instances that run before it is first called."""
    from optuna import pruners

    if name == "none":
        return pruners.NopPruner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pruners.WilcoxonPruner(p_threshold=P_THRESHOLD, n_startup_steps=groups)


Point = dict[str, Any]  # a value of each variable


def first_points(sampler: str, space: Space, defaults: Mapping[str, Value], trials: int, seed: int) -> list[Point]:
    """Return the values of the first trials: the defaults, and then, for a grid, all of its points.

    The grid has the most levels, the same for every number, with which it fits into the trials; its points come in an
    order drawn from the seed. Raises SearchError for a grid of more points than trials.
    """
    if sampler != "grid":
        return [dict(defaults)]
    room, count, points = trials - 1, 1, _grid(space, 1)
    while len(larger := _grid(space, count + 1)) <= room and len(larger) > len(points):
        count, points = count + 1, larger
    if count < 2 and any(not variable.choices for variable in space.variables):
        raise SearchError(
            f"a grid of two levels of {', '.join(space.names)} has {len(_grid(space, 2))} points, and "
            f"{trials - 1} trials are left after the defaults; ask for more trials, or search fewer parameters"
        )
    random.Random(seed).shuffle(points)
    return [dict(defaults), *points]


def _grid(space: Space, count: int) -> list[Point]:
    levels = [variable.levels(count) for variable in space.variables]
    return [dict(zip(space.names, point, strict=True)) for point in itertools.product(*levels)]

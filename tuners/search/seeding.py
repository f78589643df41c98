"""A sampler whose draws do not depend on how often a study was stopped: seeded anew for each trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from servegym.tuners.search.attempts import index_of


class SeededSampler(BaseSampler):
    """Makes a new sampler for each trial, seeded by (seed, the trial's index).

    make: a sampler of a seed. All that it knows must be in the study, as it is for Optuna's TPE, GP, CMA-ES, NSGA-II
    and random samplers. (A grid needs none: its points are given to `work` as first points.)
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make = make
        self._seed = seed
        self._sampler = make(seed)

    def __str__(self) -> str:
        return str(self._sampler)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        index = index_of(trial)
        key = (self._seed, trial.number if index is None else index)
        self._sampler = self._make(int(np.random.SeedSequence(key).generate_state(1)[0]))
        self._sampler.before_trial(study, self._told(trial))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, self._told(trial))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, self._told(trial), search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, self._told(trial), param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler.after_trial(study, self._told(trial), state, values)

    def _told(self, trial: FrozenTrial) -> FrozenTrial:
        """The trial, as the sampler is shown it. CMA-ES adds the trial's number to its seed: it sees the index instead,
        which a retry does not change."""
        index = index_of(trial)
        if index is None or not isinstance(self._sampler, CmaEsSampler):
            return trial
        renumbered = copy.copy(trial)
        renumbered.number = index
        return renumbered

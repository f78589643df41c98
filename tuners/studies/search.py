"""A study made ready to run: its space, its first points, and the objective that scores a trial."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servegym.errors import TuningError
from servegym.evaluation.identity import versions
from servegym.evaluation.running import Runner
from servegym.simulator.policies.policy import Policy, Value
from servegym.tuners.search.choosing import build_space
from servegym.tuners.search.samplers import Point, check_search, first_points, make_pruner, make_sampler, seed_of
from servegym.tuners.search.space import Settings, Space
from servegym.tuners.studies.config import FIGURES, OBJECTIVES, TuningConfig
from servegym.tuners.studies.instances import Instances, Job, Outcome, find_policies, instances_of, run_job

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

    from servegym.tuners.search.storage import Shared

OUTCOMES, SETTINGS = "outcomes", "settings"  # attributes of a trial


class Search:
    """One study of a tuning. Raises SearchError, PolicyError, TuningError for what cannot be searched."""

    def __init__(self, config: TuningConfig, name: str):
        self.config = config
        self.name = name
        study = config.studies[name]
        self.policies = find_policies(config.panel, study)
        self.space: Space = build_space(self.policies, study.tune)
        check_search(config.sampler, config.pruner, self.space, len(config.objectives), len(config.constraints) > 0)

    @property
    def instances(self) -> Instances:
        return instances_of(self.config.panel)

    @functools.cached_property
    def defaults(self) -> dict[str, Value]:
        """Where the search begins, by variable: the policies' own defaults.

        A default that depends on what is served is that of the panel's median instance.
        """

        def fact_of(role: str) -> Callable[[str], float]:
            return lambda fact: self.instances.fact(role, fact)

        return self.space.defaults({role: fact_of(role) for role in self.policies})

    @functools.cached_property
    def first_points(self) -> list[Point]:
        """Values of the first trials; trial 0 has the defaults."""
        config = self.config
        return first_points(config.sampler, self.space, self.defaults, config.trials, config.seed)

    @property
    def trials(self) -> int:
        """Number of trials of the study; a grid may have fewer points than were asked for."""
        return len(self.first_points) if self.config.sampler == "grid" else self.config.trials

    def sampler(self, index: int) -> BaseSampler:
        """Make the sampler of a trial. Its draws depend on the study's seed, the index and the finished trials, not on
        how often the study was stopped."""
        config = self.config
        return make_sampler(config.sampler, seed_of(config.seed, index), self.defaults)

    @property
    def pruner(self) -> BasePruner:
        return make_pruner(self.config.pruner, self.config.group)

    @functools.cached_property
    def order(self) -> list[int]:
        """Instances as a trial runs them: shuffled, so that those it may be pruned by are of all cells."""
        order = list(range(len(self.instances)))
        random.Random(self.config.seed).shuffle(order)
        return order

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything the trials depend on except their number, since a study can be given more."""
        config = self.config
        grid = {"trials": config.trials} if config.sampler == "grid" else {}
        return {
            "space": self.space.to_json(),
            "first": self.defaults,
            "objectives": list(config.objectives),
            "constraints": dict(config.constraints),
            "sampler": config.sampler,
            "pruner": config.pruner,
            "group": config.group,
            "seed": config.seed,
            "versions": versions() | optuna_version(),
            **grid,
            **self.instances.identity(self.policies),
        }

    @property
    def study_name(self) -> str:
        """Name of the study in a storage, where those of other tunings are too."""
        return f"{self.config.name}.{self.name}"

    def run_trials(
        self, storage: Shared, runner: Runner, progress: Callable[[str, int, int], None]
    ) -> list[FrozenTrial]:
        """Run the open trials of the study, along with any other workers; returns all finished ones, in order.

        Raises ForeignStudyError, StorageError, WorkError.
        """
        from servegym.tuners.search.storage import open_study
        from servegym.tuners.search.workers import work

        return work(
            open_study(storage, self.study_name, self.identity, self.config.directions, self.pruner),
            functools.partial(self._score, runner),
            self.trials,
            self.sampler,
            enqueue=self.first_points,
            progress=functools.partial(progress, "trials"),
        )

    def policies_with(self, settings: Settings | None) -> dict[str, Policy]:
        """Give the policies some settings; None: as they are named, with which a winner is compared."""
        return dict(self.policies) if settings is None else self.space.policies_with(settings)

    def _score(self, runner: Runner, trial: Trial) -> float | Sequence[float]:
        """Score a trial on the panel; the score is the same for any runner."""
        from optuna import TrialPruned

        settings = self.space.settings(self.space.suggest(trial))
        policies = self.space.policies_with(settings)
        outcomes: dict[int, Outcome] = {}
        pruned = False
        for places in self._groups():
            jobs = [Job(self.config.panel, self.order[place], policies) for place in places]
            done = dict(runner.run(run_job, jobs))
            outcomes |= {jobs[at].instance: outcome for at, outcome in done.items()}
            if self.config.pruner != "none":
                figure = OBJECTIVES[self.config.objectives[0]].figure
                for at, place in enumerate(places):
                    trial.report(_number(done[at][figure], figure), place)
                pruned = len(outcomes) < len(self.order) and trial.should_prune()
            if pruned:
                break
        trial.set_user_attr(SETTINGS, settings)
        trial.set_user_attr(OUTCOMES, {name: self._column(outcomes, name) for name in FIGURES})
        for name, bound in self.config.constraints.items():
            trial.set_constraint(name, excess(name, bound, mean_of(outcomes.values(), name)))
        if pruned:
            raise TrialPruned
        scores = [mean_of(outcomes.values(), name) for name in self.config.objectives]
        return scores[0] if len(scores) == 1 else scores

    def _groups(self) -> list[range]:
        """Split the places in the order into groups; a pruner is called after each."""
        size = len(self.order) if self.config.pruner == "none" else self.config.group
        return [range(start, min(start + size, len(self.order))) for start in range(0, len(self.order), size)]

    def _column(self, outcomes: Mapping[int, Outcome], figure: str) -> list[float | None]:
        """List a figure of each instance of the panel, in its order; None where the trial was pruned before."""
        return [outcomes[index][figure] if index in outcomes else None for index in range(len(self.order))]


def mean_of(outcomes: Any, objective: str) -> float:
    """Average an objective over instances, without those that have none (a priority that no request has)."""
    figure = OBJECTIVES[objective].figure
    values = [outcome[figure] for outcome in outcomes if outcome[figure] is not None]
    if not values:
        raise TuningError(f"{objective}: no instance of the panel has it; its requests are of one priority")
    return float(sum(values) / len(values))


def excess(name: str, bound: float, value: float) -> float:
    """Return by how much a mean violates its bound; 0 or less: it holds."""
    return OBJECTIVES[name].sign * (bound - value)


def _number(value: float | None, figure: str) -> float:
    if value is None:
        raise TuningError(f"{figure}: an instance has none, so trials cannot be compared instance by instance")
    return value


def optuna_version() -> dict[str, str]:
    import optuna

    return {"optuna": optuna.__version__}

"""Generations of a search: each candidate is a compiled policy that serves whole scenarios, and the search gets their
scores.

All candidates of a generation serve the same scenarios, which are new in each generation. Only the order of the
candidates counts, so they are not compared with the base. The best of the search is validated from time to time;
training returns the one that was best in validation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.evaluation.running import Runner, ThreadRunner, results_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.tuners.config import TrainingConfig
from servegym.tuners.decision_head import DecisionHead
from servegym.tuners.objective import GAIN_ALONE, Objective
from servegym.tuners.outcome import Progress, State, Stopped, Stopwatch, finish, in_whole
from servegym.tuners.problem import Problem
from servegym.tuners.runs import RunFolder
from servegym.tuners.serving import outcome_of, tdg_ratio
from servegym.tuners.validation import Judge, progress_text


def score_of(runs: Sequence[Scenario], objective: Objective, index: int) -> float:
    """Score of a policy on one of some scenarios, by the objective."""
    if objective.is_gain_alone:
        return tdg_ratio(runs[index])
    outcome = outcome_of(runs, index)
    return outcome.gain_ratio + objective.beside_gain(outcome._asdict())


def scores_of(
    head: DecisionHead,
    policies: Sequence[Policy],
    scenarios: Sequence[Scenario],
    runner: Runner,
    objective: Objective = GAIN_ALONE,
) -> np.ndarray:
    """float64[policies]: mean score over the scenarios, by the objective."""
    runs = [head.with_policy(scenario, policy) for policy in policies for scenario in scenarios]
    ratios = np.array(results_of(runner, functools.partial(score_of, runs, objective), range(len(runs))))
    return ratios.reshape(len(policies), len(scenarios)).mean(axis=1)


def scenarios_of(problem: Problem, generation: int, count: int) -> list[Scenario]:
    """The scenarios of a generation, with the next seeds of the training."""
    config, first = problem.config, problem.config.seed + generation * count
    room = config.validation.first_seed  # the seeds from there on are for validation
    return [problem.source(np.random.default_rng(seed % room)) for seed in range(first, first + count)]


class Candidates(Protocol):
    """The interface of a search, which proposes candidates and takes their scores. It can be pickled."""

    def candidates(self) -> Sequence[Any]: ...

    def learn(self, scores: np.ndarray) -> None: ...

    @property
    def population(self) -> int: ...

    @property
    def best(self) -> Any: ...

    @property
    def has_ended(self) -> bool: ...

    def said(self) -> dict[str, Any]: ...


def evolve(
    problem: Problem,
    search: Callable[[], Candidates],
    policy_of: Callable[[Any], LearnedPolicy],
    scenarios: int,
    folder: RunFolder,
    resume: bool,
    progress: Progress | None,
    runner: Runner | None,
) -> LearnedPolicy:
    """Train with any search. policy_of: makes a policy of a candidate. scenarios: number in a generation."""
    found = folder.last_checkpoint() if resume else None
    run = found[1]["run"] if found else Evolution(search())
    if not resume:
        folder.begin(problem.config)
    try:
        run.go_on(problem, policy_of, scenarios, folder, runner or ThreadRunner(), progress)
    except KeyboardInterrupt:
        raise Stopped(run.steps) from None
    return finish(problem, folder, run.state, policy_of(run.state.best))


class Evolution:
    """The state of a training, which checkpoints save."""

    def __init__(self, search: Candidates):
        self.search, self.state = search, State()
        self.generation = self.steps = 0

    def go_on(
        self,
        problem: Problem,
        policy_of: Callable[[Any], LearnedPolicy],
        count: int,
        folder: RunFolder,
        runner: Runner,
        progress: Progress | None,
    ) -> None:
        """Run generations of `count` scenarios each to the end of the budget."""
        head, state = problem.head, self.state
        judge = Judge(head, problem.validation_source, problem.config.validation, runner, problem.config.objective)
        watch = Stopwatch(state)
        while True:
            share = self._share_used(problem.config)
            if share >= 1 or self._is_due(problem.config):
                self._validate(policy_of, judge)
                folder.write_curve(state.rows)
            if progress is not None:
                text = f"{self.steps:,}{self._planned(problem.config, count)} scenarios"
                progress(min(share, 1.0), text + progress_text(self.state.rows[-1]))
            if share >= 1:
                return
            scenarios = scenarios_of(problem, self.generation, count)
            policies = [policy_of(candidate) for candidate in self.search.candidates()]
            self.search.learn(scores_of(head, policies, scenarios, runner, problem.config.objective))
            self.generation += 1
            self.steps += len(policies) * len(scenarios)
            watch.read()
            folder.checkpoint(self.steps, {"run": self}, lambda draft: None)

    def _planned(self, config: TrainingConfig, count: int) -> str:
        """Text for the scenarios after which it ends, in whole generations; "": it ends by time alone."""
        steps = config.budget.steps
        if steps is None:
            return ""
        return f" of {self.steps + in_whole(max(steps - self.steps, 0), self.search.population * count):,}"

    def _share_used(self, config: TrainingConfig) -> float:
        """Share of the budget used; 1 also if the search has ended."""
        budget = config.budget
        shares = [self.steps / budget.steps] if budget.steps else []
        shares += [self.state.elapsed_s / (60 * budget.minutes)] if budget.minutes else []
        return 1.0 if self.search.has_ended else max(shares)

    def _is_due(self, config: TrainingConfig) -> bool:
        every, rows = config.validation, self.state.rows
        if not rows:
            return True
        minutes = self.state.elapsed_s / 60 - rows[-1]["minutes"]
        by_time = every.every_minutes is not None and minutes >= every.every_minutes
        return by_time or (every.every_steps is not None and self.steps - rows[-1]["steps"] >= every.every_steps)

    def _validate(self, policy_of: Callable[[Any], LearnedPolicy], judge: Judge) -> None:
        """Validate the best of the search; keep it if it is the best so far."""
        state, found = self.state, self.search.best
        if state.rows and state.rows[-1]["steps"] == self.steps:
            return
        verdict = judge.judge(policy_of(found))
        is_best = state.best is None or verdict.score > state.best_row["score"]
        row = {"steps": self.steps, "minutes": state.elapsed_s / 60, "generation": self.generation}
        row |= {**self.search.said(), **dataclasses.asdict(verdict), "is_best": is_best}
        state.rows.append(row)
        if is_best:
            state.best, state.best_row = found, row

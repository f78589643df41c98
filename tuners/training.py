"""Training with Stable-Baselines3: from a configuration to a compiled policy, in a folder from which it can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.errors import TrainingError
from servegym.tuners.actors import actor_layers, network_of
from servegym.tuners.config import TrainingConfig, errors_of
from servegym.tuners.learners import Annealed, load_model, new_model
from servegym.tuners.outcome import (
    Progress,
    State,
    Stopped,
    Stopwatch,
    finish,
    in_whole,
    save_policy,
    validation_provenance,
)
from servegym.tuners.ppo_settings import checked
from servegym.tuners.problem import Problem, problem_of
from servegym.tuners.rewards import TrainingVecEnv
from servegym.tuners.runs import POLICY, TENSORBOARD, RunFolder
from servegym.tuners.validation import Judge, progress_text

MODEL = "model.zip"
FOREVER = 2**62  # steps, where a budget has none
MOST_WEIGHT = 1e6  # far above any of a network that decides


class Training(BaseCallback):
    """Watches a model learn: validates, keeps the best, writes checkpoints, and ends it when the budget is used.

    It does all of that at the beginning of a rollout, when the model has just learned from the last one.
    """

    def __init__(self, problem: Problem, folder: RunFolder, state: State, progress: Progress | None):
        super().__init__()
        self.problem, self.folder, self.state, self.progress = problem, folder, state, progress
        self.judge = Judge(
            problem.head, problem.validation_source, problem.config.validation, None, problem.config.objective
        )
        self.interrupted = self.over = False
        self._ratios: list[float] = []
        self._validated: tuple[int, float] | None = None  # steps, seconds
        if state.rows:
            self._validated = (state.rows[-1]["steps"], 60 * state.rows[-1]["minutes"])
        self._checkpointed_s = state.elapsed_s
        self._said = ""
        self.planned = 0  # steps after which it ends, in whole rollouts; 0: it ends by time alone

    def begin_clock(self) -> None:
        self.stopwatch = Stopwatch(self.state)

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            self._ratios += [info["tdg_ratio"] for info in self.locals["infos"] if info]
        return not (self.over or self.interrupted)

    def _on_rollout_start(self) -> None:
        self.stopwatch.read()
        share = self.share_used()
        self.over = share >= 1.0
        rate = self.model.learning_rate
        if isinstance(rate, Annealed):
            rate.share = share
        if self._is_due() or self.over:
            self.validate()
        if self.state.elapsed_s - self._checkpointed_s >= 60 * self.problem.config.checkpoint_minutes:
            self.checkpoint()
        if self._ratios:
            self.logger.record("episode/tdg_ratio", float(np.mean(self._ratios)))
            self.logger.record("episode/episodes", self.training_env.episodes)  # type: ignore[attr-defined]
            self._ratios.clear()
        self.say()

    def say(self) -> None:
        """Report the progress."""
        if self.progress is not None:
            of = f" of {self.planned:,}" if self.planned else ""
            self.progress(self.share_used(), f"{self.num_timesteps:,}{of} steps{self._said}")

    def share_used(self) -> float:
        budget = self.problem.config.budget
        shares = [self.num_timesteps / budget.steps] if budget.steps else []
        return max([*shares, self.state.elapsed_s / (60 * budget.minutes)] if budget.minutes else shares)

    def _is_due(self) -> bool:
        if self._validated is None:
            return True
        config, (steps, seconds) = self.problem.config.validation, self._validated
        by_steps = config.every_steps is not None and self.num_timesteps - steps >= config.every_steps
        by_time = config.every_minutes is not None and self.state.elapsed_s - seconds >= 60 * config.every_minutes
        return by_steps or by_time

    def validate(self) -> None:
        """Judge the policy as it is now; keep it if it is the best so far."""
        state = self.state
        self._validated = (self.num_timesteps, state.elapsed_s)
        if state.rows and state.rows[-1]["steps"] == self.num_timesteps:
            return
        network = network_of(actor_layers(self.model), self.problem.shape)
        verdict = self.judge.judge(self.problem.head.policy(network))
        is_best = state.best is None or verdict.score > state.best_row["score"]
        row = {
            "steps": self.num_timesteps,
            "minutes": state.elapsed_s / 60,
            **dataclasses.asdict(verdict),
            "is_best": is_best,
        }
        state.rows.append(row)
        if is_best:
            state.best, state.best_row = network, row
            save_policy(self.problem, network, self.folder.path / POLICY, **validation_provenance(row))
        self.folder.write_curve(state.rows)
        for name in ("policy", "base", "difference"):
            self.logger.record(f"validation/{name}_tdg_ratio", row[name])
        self._said = progress_text(row)

    def checkpoint(self) -> None:
        """Write everything needed to resume from here."""
        env = self.training_env
        assert isinstance(env, TrainingVecEnv)
        self._checkpointed_s = self.state.elapsed_s
        state = {
            "training": self.state,
            "generators": env.rng_states,
            "episodes": env.episodes,
            "torch": torch.get_rng_state().numpy(),
            "numpy": np.random.get_state(),  # noqa: NPY002 (Stable-Baselines3 draws from it)
            "python": random.getstate(),
        }
        self.folder.checkpoint(self.num_timesteps, state, lambda draft: self.model.save(draft / MODEL))


def train(
    config: TrainingConfig, out: str | Path, resume: bool = False, progress: Progress | None = None
) -> LearnedPolicy:
    """Train as configured in the folder `out`; returns the policy that was best in validation.

    resume: go on from the last checkpoint there. progress: called at each rollout. Raises TrainingError for what cannot
    be trained, Stopped after Ctrl-C.
    """
    with errors_of(config.file):
        checked(config)  # before the environment, whose rewards may depend on gamma
        problem, folder = problem_of(config), RunFolder(out)
    found = folder.last_checkpoint() if resume else None
    state = found[1]["training"] if found else State()
    env = TrainingVecEnv(problem.venv, problem.head, config.objective, config.reward_scale)
    with torch_threads(config.torch_threads):
        with errors_of(config.file):
            model = load_model(problem, env, found[0] / MODEL) if found else new_model(problem, env)
        if not resume:
            folder.begin(config)
        if found:
            restore(env, found[1])
        watch = Training(problem, folder, state, progress)
        learn(model, watch)
    return finish(problem, folder, state)


def learn(model: OnPolicyAlgorithm, watch: Training) -> None:
    """Let the model learn until the budget is used. Raises Stopped after Ctrl-C."""
    budget = watch.problem.config.budget
    model.set_logger(configure(str(watch.folder.path / TENSORBOARD), ["tensorboard"]))
    with ctrl_c_sets(watch):
        watch.begin_clock()
        left = (budget.steps or FOREVER) - model.num_timesteps
        if budget.steps:
            watch.planned = model.num_timesteps + in_whole(max(left, 0), model.n_steps * model.n_envs)
        # Stable-Baselines3 counts on from the model's steps, and ends by itself only after all rollouts.
        try:
            model.learn(max(left, 0), callback=watch, reset_num_timesteps=False, log_interval=1)
            watch.stopwatch.read()
            if not (watch.interrupted or watch.over):
                watch.validate()
        except ValueError:
            check_weights(model, watch.problem.config)
            raise
    watch.checkpoint()
    watch.say()
    model.logger.close()
    if watch.interrupted:
        raise Stopped(model.num_timesteps)


def check_weights(model: OnPolicyAlgorithm, config: TrainingConfig) -> None:
    """Raise TrainingError if steps were so large that weights lead nowhere, or are no numbers any more."""
    if all(bool((weights.abs() < MOST_WEIGHT).all()) for weights in model.policy.parameters()):
        return
    rate, steps = config.hyperparameters.get("learning_rate"), model.num_timesteps
    with errors_of(config.file):
        raise TrainingError(
            f"hyperparameters.learning_rate is {rate!r}; it should be lower: after {steps:,} steps weights are above "
            f"{MOST_WEIGHT:g}, or no numbers"
        )


def restore(env: TrainingVecEnv, state: dict[str, Any]) -> None:
    """Restore all random states. Running episodes are lost: each environment begins a new one."""
    env.rng_states, env.episodes = state["generators"], state["episodes"]
    torch.set_rng_state(torch.as_tensor(state["torch"]))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Limit torch's threads: for layers this small more threads are no faster, and they wait for busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def ctrl_c_sets(watch: Training) -> Iterator[None]:
    """The first Ctrl-C ends the training at the next step, with a checkpoint; the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: Any) -> None:
        if watch.interrupted:
            raise KeyboardInterrupt
        watch.interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

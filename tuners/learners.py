"""The algorithms of Stable-Baselines3 and sb3-contrib, with networks that can become compiled policies."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from servegym.baselines.artifact.files import load_policy
from servegym.envs.sb3 import Sb3VecEnv
from servegym.errors import TrainingError
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.tuners.actors import CompilablePolicy, MaskableCompilablePolicy, actor_layers, load_network
from servegym.tuners.config import errors_of
from servegym.tuners.discounting import Timed, TimedMaskableRolloutBuffer, TimedRolloutBuffer
from servegym.tuners.own_networks import policy_arguments
from servegym.tuners.ppo_settings import END, OVER_TIME, checked
from servegym.tuners.problem import Problem

CLASSES: dict[str, Any] = {"ppo": PPO, "maskable-ppo": MaskablePPO}
POLICIES: dict[str, Any] = {"ppo": CompilablePolicy, "maskable-ppo": MaskableCompilablePolicy}
BUFFERS: dict[str, Any] = {"ppo": TimedRolloutBuffer, "maskable-ppo": TimedMaskableRolloutBuffer}


class Annealed:
    """A learning rate that falls linearly from one number to another. share: of the budget used; the caller updates
    it."""

    def __init__(self, begin: float, end: float):
        self.begin, self.end, self.share = begin, end, 0.0

    def __call__(self, remaining: float) -> float:
        del remaining  # Stable-Baselines3's own, based on a budget of steps
        return self.begin + (self.end - self.begin) * min(self.share, 1.0)


def new_model(problem: Problem, env: VecEnv) -> OnPolicyAlgorithm:
    """Make a model that acts as the base policy, or as the policy to start from. Raises TrainingError."""
    config = problem.config
    check_suits(problem)
    check_credit(problem)
    more = checked(config)
    rate = more.pop(END, None)
    if rate is not None:
        more["learning_rate"] = Annealed(more.get("learning_rate", 3e-4), rate)
    if OVER_TIME[0] in more:
        seconds = {name: more.pop(name) for name in OVER_TIME}
        more |= {"rollout_buffer_class": BUFFERS[config.algorithm], "rollout_buffer_kwargs": seconds}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You have specified a mini-batch size")
            model: OnPolicyAlgorithm = CLASSES[config.algorithm](
                POLICIES[config.algorithm],
                env,
                policy_kwargs=policy_arguments(problem.head, config.network, problem.venv.single_action_space),
                device="cpu",
                seed=config.seed,
                **more,
            )
    except (TypeError, ValueError, AssertionError) as error:
        raise TrainingError(f"hyperparameters of {config.algorithm}: {error}") from None
    if config.start is not None:
        start_from(model, problem, config.start)
    return with_clock(model, env)


def with_clock(model: OnPolicyAlgorithm, env: VecEnv) -> OnPolicyAlgorithm:
    """Set the clock of a model's rollout buffer if it discounts over time; returns the model."""
    buffer = getattr(model, "rollout_buffer", None)
    if isinstance(buffer, Timed):
        assert isinstance(env, Sb3VecEnv)
        buffer.clock = env
    return model


def load_model(problem: Problem, env: VecEnv, path: Path) -> OnPolicyAlgorithm:
    model: OnPolicyAlgorithm = CLASSES[problem.config.algorithm].load(path, env=env, device="cpu")
    return with_clock(model, env)


def check_suits(problem: Problem) -> None:
    """Raise TrainingError if the algorithm does not suit the environment's actions."""
    config = problem.config
    if config.algorithm not in CLASSES:
        raise TrainingError(f"algorithm is {config.algorithm!r}; here it should be one of {', '.join(CLASSES)}")
    suitable = "maskable-ppo" if problem.venv.interface.choices else "ppo"
    if config.algorithm != suitable:
        raise TrainingError(
            f"algorithm is {config.algorithm!r}; for {config.environment} it should be {suitable} or cma"
        )


def check_credit(problem: Problem) -> None:
    """Raise TrainingError if decisions cannot be rewarded by request."""
    config = problem.config
    if not config.objective.by_request:
        return
    if problem.venv.interface.stop_at != AT_ROUTES:
        raise TrainingError(f"objective.by_request: {config.environment} has no decisions about single requests")
    if OVER_TIME[0] not in config.hyperparameters:
        raise TrainingError(f"objective.by_request needs discounting over time: {', '.join(OVER_TIME)}")


def start_from(model: OnPolicyAlgorithm, problem: Problem, path: str) -> None:
    """Copy the weights of a policy's network into the model's actor. Raises TrainingError if they do not fit."""
    with errors_of("start"):
        network = getattr(load_policy(path), "network", None)
    if network is None or network.shape != problem.shape:
        shape = "no network" if network is None else network.shape.to_json()
        raise TrainingError(f"start: {path} has {shape}; it should have {problem.shape.to_json()}")
    load_network(actor_layers(model), network)

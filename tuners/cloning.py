"""Behaviour cloning: a network learns to imitate a heuristic, as a start for learning from rewards.

Later rounds visit the states that the network itself reaches, labelled with the teacher's decisions (DAgger): Ross,
Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning", 2011.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network
from servegym.envs.env import ServingEnv
from servegym.errors import TrainingError
from servegym.tuners.actors import Actor, begin_with_base, load_network, network_of
from servegym.tuners.config import TrainingConfig, errors_of, from_plain
from servegym.tuners.decision_head import NetworkAgent
from servegym.tuners.outcome import Progress, State, Stopwatch, finish
from servegym.tuners.problem import Problem, problem_of
from servegym.tuners.runs import RunFolder
from servegym.tuners.teachers import Teacher, teacher_of
from servegym.tuners.training import torch_threads
from servegym.tuners.validation import Judge


@dataclasses.dataclass(frozen=True)
class CloningConfig:
    """`hyperparameters` of the algorithm bc; the budget's steps count demonstrated decisions.

    teacher: "name:key=value,..." of a policy to imitate; "": the base. rounds: the teacher acts in the first, the
    network in the others. epochs: in each round, over all decisions so far. batch_size, learning_rate: of Adam.
    """

    teacher: str = ""
    rounds: int = 2
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3

    @staticmethod
    def of(config: TrainingConfig) -> CloningConfig:
        """Read and check the hyperparameters. Raises TrainingError for invalid ones."""
        settings: CloningConfig = from_plain(CloningConfig, config.hyperparameters, "hyperparameters")
        for name in ("rounds", "epochs", "batch_size", "learning_rate"):
            value = getattr(settings, name)
            if not 0 < value < math.inf:
                raise TrainingError(f"hyperparameters.{name} is {value!r}; it should be above 0")
        if config.budget.steps is None:
            raise TrainingError("budget.steps is None; bc takes the number of decisions to show, such as --steps 20000")
        return settings


@dataclasses.dataclass
class Shown:
    """Demonstrated decisions: observations float32[n, size], actions of the teacher, and masks of legal choices."""

    observations: np.ndarray
    actions: np.ndarray
    masks: np.ndarray

    @staticmethod
    def of(shown: list[Shown]) -> Shown:
        return Shown(
            *(np.concatenate([getattr(one, field.name) for one in shown]) for field in dataclasses.fields(Shown))
        )


def show(env: ServingEnv, teacher: Teacher, agent: Any, decisions: int, seed: int) -> Shown:
    """Collect `decisions` of the teacher in episodes, the first reset with the seed. agent: acts in them."""
    choices = env.interface.choices
    observations = np.zeros((decisions, env.interface.layout.size), "f4")
    actions = np.zeros((decisions, *(env.action_space.shape or ())), env.action_space.dtype)
    masks = np.ones((decisions, max(choices, 1)), bool)
    over, observation, info = True, np.zeros(0), {}  # type: tuple[bool, np.ndarray, dict[str, Any]]
    for i in range(decisions):
        if over:
            observation, info = env.reset(seed=seed)
            seed += 1
            teacher.begin()
        observations[i], actions[i] = observation, teacher.act(observation, info)
        if choices:
            masks[i] = info["action_mask"]
        action = actions[i] if agent is teacher else agent.act(observation, info)
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    return Shown(observations, actions, masks)


class Learner:
    """An actor that is fitted to demonstrated decisions."""

    def __init__(self, problem: Problem, settings: CloningConfig):
        config, head = problem.config, problem.head
        self.problem, self.settings = problem, settings
        torch.manual_seed(config.seed)
        self.actor = Actor(problem.shape)
        begin_with_base(self.actor, head.base_bias and head.base_bias.times(config.network.base_bias))
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=settings.learning_rate)
        self.generator = torch.Generator().manual_seed(config.seed)

    @property
    def network(self) -> Network:
        return network_of(list(self.actor.layers), self.problem.shape)

    def fit(self, shown: Shown) -> float:
        """Train for several epochs. Returns the mean loss of the last one."""
        tensors = [torch.as_tensor(array) for array in (shown.observations, shown.actions, shown.masks)]
        n, losses = len(shown.observations), [0.0]
        for _ in range(self.settings.epochs):
            losses = []
            for rows in torch.randperm(n, generator=self.generator).split(self.settings.batch_size):
                loss = self.loss(*(tensor[rows] for tensor in tensors))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(float(loss.detach()) * len(rows))
        if not all(bool(torch.isfinite(weights).all()) for weights in self.actor.parameters()):
            rate = self.settings.learning_rate
            raise TrainingError(
                f"hyperparameters.learning_rate is {rate!r}; it should be lower: weights are no numbers"
            )
        return sum(losses) / n

    def loss(self, observations: torch.Tensor, actions: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Loss: cross-entropy over legal choices; for other actions, squared error over filled slots."""
        outputs, shape = self.actor(observations), self.problem.shape
        if isinstance(self.problem.venv.single_action_space, gym.spaces.Discrete):
            legal = outputs.masked_fill(~masks, -torch.inf)
            return torch.nn.functional.cross_entropy(legal, actions)
        if isinstance(self.problem.venv.single_action_space, gym.spaces.MultiDiscrete):
            choices = outputs.unflatten(-1, (-1, shape.outputs)).flatten(0, -2)
            return torch.nn.functional.cross_entropy(choices, actions.flatten())
        present = torch.ones_like(outputs)
        if shape.is_joint:
            of_slots = (observations[:, shape.whole :: shape.slot] > 0).float()
            present = torch.cat([present[:, : shape.outputs - 1], of_slots], -1)
        elif shape.is_shared:
            present = (observations[:, shape.whole :: shape.slot] > 0).float()
        return (present * (outputs - actions) ** 2).sum() / present.sum().clamp(min=1.0)


def train(
    config: TrainingConfig, out: str | Path, resume: bool = False, progress: Progress | None = None
) -> LearnedPolicy:
    """Train as configured in the folder `out`; returns the policy of the last round.

    resume: start over in the folder of a stopped training; the result has the same bytes. progress: called before the
    first round and after each. Raises TrainingError for a configuration that cannot be trained, PolicyError for an
    unknown teacher.
    """
    with errors_of(config.file), torch_threads(config.torch_threads):
        settings, problem, folder = CloningConfig.of(config), problem_of(config), RunFolder(out)
        env = ServingEnv(problem.venv.interface, problem.source)
        with errors_of("hyperparameters.teacher"):
            teacher = teacher_of(env, settings.teacher)
        learner = Learner(problem, settings)
        if config.start is not None:
            from servegym.tuners.evolution import start_of

            load_network(list(learner.actor.layers), start_of(problem))
    if resume:
        folder.config()
    else:
        folder.begin(config)
    with torch_threads(config.torch_threads):
        state = learn(problem, settings, learner, env, teacher, progress)
    folder.write_curve(state.rows)
    return finish(problem, folder, state)


def learn(
    problem: Problem,
    settings: CloningConfig,
    learner: Learner,
    env: ServingEnv,
    teacher: Teacher,
    progress: Progress | None,
) -> State:
    """Collect decisions and fit the network, round by round."""
    config, state = problem.config, State()
    judge = Judge(problem.head, problem.validation_source, config.validation)
    watch, parts = Stopwatch(state), []
    assert config.budget.steps is not None
    decisions = max(1, config.budget.steps // settings.rounds)
    if progress is not None:
        progress(0.0, f"0 of {settings.rounds * decisions:,} decisions")
    for number in range(settings.rounds):
        agent = teacher if number == 0 else NetworkAgent(problem.venv.interface, learner.network)
        parts.append(show(env, teacher, agent, decisions, config.seed + number * decisions))
        with errors_of(config.file):
            loss = learner.fit(Shown.of(parts))
        network = learner.network
        verdict = judge.judge(problem.head.policy(network))
        row = {"steps": (number + 1) * decisions, "minutes": watch.read() / 60, "loss": loss}
        row |= {**dataclasses.asdict(verdict), "is_best": number == settings.rounds - 1}
        state.rows.append(row)
        state.best, state.best_row = network, row  # the aim is to imitate the teacher, not the highest gain
        if progress is not None:
            progress((number + 1) / settings.rounds, f"{row['steps']:,} decisions, loss {loss:.4f}")
    return state

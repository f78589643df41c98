"""PPO in one file, to be read from top to bottom and changed: an agent for environments whose actions are a `Box`.

python -m experiments.environments.ppo --environment EngineBatching-v0 --preset overload --steps 200000

Schulman et al., "Proximal Policy Optimization Algorithms" (2017), with the usual details: advantages by GAE and
normalised in each minibatch, clipped ratio, a falling learning rate, gradients clipped by norm. The mean of the actor
begins at 0, which is the base policy's own decision in `EngineBatching-v0`. For a policy that every command takes there
is `servegym train` (docs/training.md); this one acts in the environment only.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

from experiments.arguments import settings_from_command_line
from servegym.evaluation.intervals import Interval, student_interval


@dataclass(frozen=True)
class Settings:
    environment: str = "EngineBatching-v0"
    preset: str = "overload"
    envs: int = 32  # stepped side by side
    steps: int = 200_000  # of all environments together
    rollout: int = 128  # steps of each environment between two updates
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 3e-4
    gamma: float = 0.998  # a decision pays off hundreds of decisions later
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5  # weight of the critic's loss
    max_grad_norm: float = 0.5
    log_std: float = -1.0  # of actions at the start
    reward_scale: float = 100.0  # a step earns about a thousandth of the episode's gain
    requests: int = 300  # of an episode
    episodes: int = 20  # of the evaluation, on held-out requests
    seed: int = 0


class Agent(nn.Module):
    """Actor (mean and log standard deviation of a normal distribution) and critic, two networks of two layers."""

    def __init__(self, inputs: int, actions: int, log_std: float):
        super().__init__()
        self.actor = mlp(inputs, actions, gain=0.0)
        self.critic = mlp(inputs, 1, gain=1.0)
        self.log_std = nn.Parameter(torch.full((actions,), log_std))

    def distribution(self, observations: torch.Tensor) -> Normal:
        return Normal(torch.tanh(self.actor(observations)), self.log_std.exp())

    def values(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)


def mlp(inputs: int, outputs: int, gain: float, hidden: int = 64) -> nn.Sequential:
    """gain: of the last layer's weights; 0: it says 0 at the start."""
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, its_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, its_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@dataclass(frozen=True)
class Rollout:
    """Tensors [steps, envs, ...]: what was seen and done, and what came of it."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


def make_envs(settings: Settings, split: str, envs: int) -> gym.vector.VectorEnv:
    envs_made = gym.make_vec(
        f"servegym:{settings.environment}", num_envs=envs, vectorization_mode="vector_entry_point",
        preset=settings.preset, requests=settings.requests, split=split,
    )  # fmt: skip
    if not isinstance(envs_made.single_action_space, gym.spaces.Box):
        raise SystemExit(f"{settings.environment} has choices for actions; this file is for those that are a Box")
    return envs_made


def rollouts(agent: Agent, envs: gym.vector.VectorEnv, settings: Settings) -> Iterator[Rollout]:
    """Play on, `rollout` steps at a time, for as long as somebody asks."""
    observation = tensor(envs.reset(seed=settings.seed)[0])
    while True:
        columns: list[list[torch.Tensor]] = [[] for _ in range(6)]
        for _ in range(settings.rollout):
            with torch.no_grad():
                distribution, value = agent.distribution(observation), agent.values(observation)
                action = distribution.sample()
            log_prob = distribution.log_prob(action).sum(-1)
            after, reward, terminated, truncated, _ = envs.step(np.clip(action.numpy(), -1.0, 1.0))
            step = (observation, action, log_prob, value, tensor(reward), tensor(terminated | truncated))
            for column, item in zip(columns, step, strict=True):
                column.append(item)
            observation = tensor(after)  # of the next episode where one has ended: the same step begins it
        with torch.no_grad():
            next_value = agent.values(observation)
        seen, actions, log_probs, values, rewards, ends = (torch.stack(column) for column in columns)
        rewards = rewards * settings.reward_scale
        advantages = gae(rewards, values, ends, next_value, settings.gamma, settings.gae_lambda)
        yield Rollout(seen, actions, log_probs, advantages, advantages + values)


def gae(
    rewards: torch.Tensor, values: torch.Tensor, ends: torch.Tensor, next_value: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Generalised advantage estimates, [steps, envs]: A_t = d_t + gamma lambda (1 - end_t) A_(t+1),
    d_t = r_t + gamma (1 - end_t) V_(t+1) - V_t (Schulman et al., 2016)."""
    advantages, following = torch.zeros_like(rewards), torch.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        going_on = 1.0 - ends[t]
        delta = rewards[t] + gamma * going_on * next_value - values[t]
        following = delta + gamma * lam * going_on * following
        advantages[t], next_value = following, values[t]
    return advantages


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, settings: Settings) -> None:
    """Several epochs of minibatches over one rollout."""
    columns = (rollout.observations, rollout.actions, rollout.log_probs, rollout.advantages, rollout.returns)
    flat = [column.flatten(0, 1) for column in columns]
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(flat[0])).chunk(settings.minibatches):
            observations, actions, old_log_probs, advantages, returns = (column[chosen] for column in flat)
            distribution = agent.distribution(observations)
            ratio = (distribution.log_prob(actions).sum(-1) - old_log_probs).exp()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
            critic_loss = (agent.values(observations) - returns).pow(2).mean()
            entropy = distribution.entropy().sum(-1).mean()
            loss = actor_loss + settings.value * critic_loss - settings.entropy * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
            optimizer.step()


def train(settings: Settings) -> Agent:
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    envs = make_envs(settings, "train", settings.envs)
    inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]  # type: ignore[index]
    agent = Agent(inputs, actions, settings.log_std)
    optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
    updates = max(1, settings.steps // (settings.envs * settings.rollout))
    begin = time.perf_counter()
    for i, rollout in zip(range(updates), rollouts(agent, envs, settings), strict=False):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - i / updates)
        update(agent, optimizer, rollout, settings)
        if i % max(1, updates // 10) == 0:
            steps = (i + 1) * settings.envs * settings.rollout
            speed = steps / (time.perf_counter() - begin)
            print(f"{steps:9,} steps, {speed:7,.0f} a second, mean return {rollout.returns.mean():8.4f}")
    return agent


def evaluate(agent: Agent | None, settings: Settings) -> np.ndarray:
    """float64[episodes]: TDG ratios with the mean of the actor's actions (None: the base policy's) on held-out ones."""
    envs = make_envs(settings, "test", settings.episodes)
    observations, infos = envs.reset(seed=settings.seed)
    ratios = np.full(settings.episodes, np.nan)
    while np.isnan(ratios).any():
        with torch.no_grad():
            mean = None if agent is None else agent.distribution(tensor(observations)).mean.numpy()
        actions = infos["base_action"] if mean is None else np.clip(mean, -1.0, 1.0)
        observations, _, terminated, truncated, infos = envs.step(actions)
        for i in np.flatnonzero((terminated | truncated) & np.isnan(ratios)):
            ratios[i] = infos["final_info"]["tdg_ratio"][i]
    return ratios


def tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=torch.float32)


def main(settings: Settings) -> Interval:
    """Train, then compare with the base policy on the same held-out episodes; returns the mean difference."""
    agent = train(settings)
    base, trained = evaluate(None, settings), evaluate(agent, settings)
    more = student_interval(trained - base)
    print(f"TDG ratio on {settings.episodes} held-out episodes: base {base.mean():.4f}, trained {trained.mean():.4f}")
    print(f"difference {more.mean:+.4f} ({more.low:+.4f} to {more.high:+.4f}, 95 %)")
    return more


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))

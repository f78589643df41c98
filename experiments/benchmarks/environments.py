"""Environments: steps a second, side by side and one alone, and what is left of them when PPO learns from them.

Vectors are of 64 environments, stepped by as many threads as they use by themselves. Observations are part of a step,
and so are the episodes that end and begin on the way. Actions are drawn before the clock starts, each number of them
anywhere between its bounds; a router's are the base's, since others would make another load.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import servegym  # noqa: F401 (makes the environments known to Gymnasium)
from servegym.envs.vector import ServingVectorEnv
from servegym.experiments.benchmarks.figures import Figure
from servegym.experiments.benchmarks.scenarios import Sizes
from servegym.scenarios.episodes import EPISODES
from servegym.scenarios.parts import STEADY
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.simulation import Simulation

TRACE, ENVIRONMENTS, SEED = "azure-conv", 64, 0
ONE_ENGINE = EPISODES.replaced(trace=(TRACE,), load=0.5, requests=400.0, load_profile=(STEADY,))
OVERLOADED = ONE_ENGINE.replaced(load=1.6)
CLUSTER = EPISODES.replaced(trace=(TRACE,), load=0.5, load_profile=(STEADY,), engines=4, router="min-load")
SHARE_OF_SIMULATE = 0.7  # that routing step by step is to keep
ACTIONS = 16  # drawn before the clock starts, and used in turn
TRAINING = "ppo-engine-batching"  # whose hyperparameters PPO is measured with


def measure(sizes: Sizes) -> list[Figure]:
    figures = [
        batching("vector_steps_per_s", ONE_ENGINE, sizes, at_least=500_000),
        batching("vector_steps_per_s_overload", OVERLOADED, sizes),
        *routing(sizes),
        single(sizes),
        reset(sizes),
    ]
    if importlib.util.find_spec("sb3_contrib") is not None:  # of the extra `train`
        figures.append(ppo(sizes))
    return figures


def vector(name: str, source: Any, **arguments: Any) -> ServingVectorEnv:
    made = gym.make_vec(
        f"servegym:{name}", num_envs=ENVIRONMENTS, vectorization_mode="vector_entry_point", scenario=source, **arguments
    )
    env = made.unwrapped
    assert isinstance(env, ServingVectorEnv)
    env.reset(seed=SEED)
    return env


def drawn_actions(space: gym.Space[Any]) -> list[Any]:
    space.seed(SEED)
    return [space.sample() for _ in range(ACTIONS)]


def batching(name: str, source: ServingSpec, sizes: Sizes, at_least: float | None = None) -> Figure:
    """Steps of EngineBatching a second, over all environments."""
    env = vector("EngineBatching-v0", source)
    actions, steps, queued = drawn_actions(env.action_space), sizes.environment_steps, []
    for k in range(steps):  # to episodes in all stages, compiled
        env.step(actions[k % ACTIONS])
        if k >= steps // 2 and k % 10 == 0:
            queued += [
                int(one.arrays.engines["queue_length"][0]) for one in env.episode_batch.simulations if one is not None
            ]

    def steps_per_s() -> float:
        begin = time.perf_counter()
        for k in range(steps):
            env.step(actions[k % ACTIONS])
        return steps * ENVIRONMENTS / (time.perf_counter() - begin)

    speeds = [steps_per_s() for _ in range(sizes.repetitions)]
    return Figure(
        name,
        median(speeds),
        f"EngineBatching, n = {ENVIRONMENTS}, load {source.demand.load:g}: {np.mean(queued):.0f} queued on average, "
        f"{np.percentile(queued, 99):.0f} at the 99th percentile",
        at_least=at_least,
        low=min(speeds),
        high=max(speeds),
    )


def routing(sizes: Sizes) -> list[Figure]:
    """Steps of ClusterRouting a second, beside requests that `simulate` serves of the same scenario in that time."""
    scenario = CLUSTER.replaced(requests=float(sizes.routed_episode_requests))(np.random.default_rng(SEED))
    simulation = Simulation(scenario)
    env = vector("ClusterRouting-v0", scenario, engines=CLUSTER.fleet.total)
    threads = env.episode_batch.threads

    def steps_per_s() -> float:
        """Of whole episodes."""
        _, info = env.reset()
        begin = time.perf_counter()
        for _ in range(sizes.routed_episode_requests):
            _, _, _, _, info = env.step(info["base_action"])
        return sizes.routed_episode_requests * ENVIRONMENTS / (time.perf_counter() - begin)

    def requests_per_s() -> float:
        wall_s = 0.0
        for _ in range(ENVIRONMENTS):
            simulation.reset()
            wall_s += simulation.run().wall_s
        return sizes.routed_episode_requests * ENVIRONMENTS / wall_s

    pairs = [(steps_per_s(), requests_per_s()) for _ in range(sizes.repetitions + 1)][1:]  # the first one compiles
    simulated = median(requests for _, requests in pairs)
    speeds = [steps for steps, _ in pairs]
    what = f"{CLUSTER.fleet.total} engines, load {CLUSTER.demand.load:g}"
    return [
        Figure(
            "routing_steps_per_s",
            median(speeds),
            f"ClusterRouting, n = {ENVIRONMENTS}, {what}; bound: {SHARE_OF_SIMULATE} x simulate x {threads} threads",
            at_least=SHARE_OF_SIMULATE * simulated * threads,
            low=min(speeds),
            high=max(speeds),
        ),
        Figure("routing_simulate_requests_per_s", simulated, f"simulate, event loop only, the same {what}"),
    ]


def single(sizes: Sizes) -> Figure:
    """Calls of `env.step` a second, of one environment as `gym.make` gives it; time in `reset` left out."""
    env = gym.make("servegym:EngineBatching-v0", scenario=ONE_ENGINE)
    actions, steps = drawn_actions(env.action_space), 4 * sizes.environment_steps
    env.reset(seed=SEED)

    def steps_per_s() -> float:
        spent_s, begin = 0.0, time.perf_counter()
        for k in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[k % ACTIONS])
            if terminated or truncated:
                spent_s += time.perf_counter() - begin
                env.reset()
                begin = time.perf_counter()
        return steps / (spent_s + time.perf_counter() - begin)

    speeds = [steps_per_s() for _ in range(sizes.repetitions + 1)][1:]
    what = "env.step of EngineBatching from gym.make, one environment"
    return Figure("step_per_s", median(speeds), what, at_least=40_000, low=min(speeds), high=max(speeds))


def reset(sizes: Sizes) -> Figure:
    """Milliseconds of `env.reset`: a scenario is drawn, and goes on to its first decision."""
    env = gym.make("servegym:EngineBatching-v0")
    env.reset(seed=SEED)
    for _ in range(10):  # reads what random scenarios are cut from
        env.reset()
    times = [timed(env.reset) for _ in range(40 * sizes.repetitions)]
    return Figure("env_reset_ms", 1e3 * median(times), "env.reset of EngineBatching, random scenarios", at_most=2)


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def learning_s(model: Any, steps: int) -> float:
    return timed(lambda: model.learn(steps, reset_num_timesteps=False))


def ppo(sizes: Sizes) -> Figure:
    """How fast PPO is from end to end, as a share of the same PPO where environments cost nothing."""
    from servegym.envs.sb3 import Sb3VecEnv
    from servegym.experiments.benchmarks.zero_cost import ZeroCostEnv
    from servegym.tuners.config import BudgetConfig, load_config
    from servegym.tuners.learners import new_model
    from servegym.tuners.problem import problem_of
    from servegym.tuners.training import torch_threads

    config = load_config(TRAINING)
    # Without a limit of the divergence both go through as many minibatches.
    parameters = {**config.hyperparameters, "target_kl": None}
    config = dataclasses.replace(config, hyperparameters=parameters, budget=BudgetConfig(steps=1))
    problem = problem_of(config)
    rollout = config.environments * parameters["n_steps"]
    shares = []
    with torch_threads(config.torch_threads):
        models = [new_model(problem, Sb3VecEnv(problem.venv)), new_model(problem, ZeroCostEnv(problem.venv))]
        for _ in range(sizes.repetitions + 1):
            seconds = [learning_s(model, sizes.ppo_rollouts * rollout) for model in models]
            shares.append(seconds[1] / seconds[0])
    shares = shares[1:]  # the first one compiles
    what = f"PPO on EngineBatching, n = {config.environments}, beside the same PPO on environments that cost nothing"
    return Figure("ppo_share", median(shares), what, at_least=0.5, low=min(shares), high=max(shares))

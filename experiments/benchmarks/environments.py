"""Environments: steps a second, side by side and one alone, and what is left of them when PPO learns from them.

Vectors of 64 are measured beside `simulate` (stepping.py). Actions of one alone are drawn before the clock starts, each
number of them anywhere between its bounds.
"""

import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium as gym

import servegym  # noqa: F401 (makes the environments known to Gymnasium)
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes
from experiments.benchmarks.stepping import SEED, SHARE, Beside, beside_simulate
from experiments.benchmarks.stepping import vector as vector  # in_turns_cases.py takes it from here
from servegym.scenarios.demand import STEADY
from servegym.scenarios.presets import EPISODES, spelled_out
from servegym.scenarios.spec import ServingSpec

TRACE = "azure-conv"
ONE_ENGINE = EPISODES.replaced(trace=(TRACE,), load=0.5, requests=400.0, load_profile=(STEADY,))
OVERLOADED = ONE_ENGINE.replaced(load=1.6)
CLUSTER = EPISODES.replaced(trace=(TRACE,), load=0.5, load_profile=(STEADY,), engines=4, router="min-load")
SESSIONS = EPISODES.with_overrides(spelled_out({"preset": "session-fleet"}))
SESSION_ENVIRONMENTS, SESSION_SHARE = 16, 0.6  # an episode of sessions has some 10 MB, most of it tables of blocks
VECTORS = (
    ("vector", "", "EngineBatching-v0", ONE_ENGINE),
    ("vector", "_overload", "EngineBatching-v0", OVERLOADED),
    ("routing", "", "ClusterRouting-v0", CLUSTER),
    ("routing", "_overload", "ClusterRouting-v0", CLUSTER.replaced(load=1.6)),
)  # how figures begin and end, and what is measured
ACTIONS = 16  # drawn before the clock starts, and used in turn
PPO: dict[str, Any] = {"n_steps": 256, "batch_size": 4096, "n_epochs": 4, "gamma": 0.999, "gae_lambda": 0.97}


def measure(sizes: Sizes) -> list[Figure]:
    figures = [
        *(figure for case in VECTORS for figure in vectors(case, sizes)),
        *sessions(sizes),
        single(sizes),
        reset(sizes),
    ]
    if importlib.util.find_spec("sb3_contrib") is not None:  # of the extra `train`
        figures.append(ppo(sizes))
    return figures


def vectors(case: tuple[str, str, str, ServingSpec], sizes: Sizes) -> list[Figure]:
    """Steps a second of one of `VECTORS`, and the share of what simulate decides in that time."""
    kind, end, name, spec = case
    engines = spec.fleet.total
    arguments = {"engines": engines} if engines > 1 else {}
    beside = Beside(name, spec.replaced(requests=float(engines * sizes.episode_requests)), **arguments)
    what = f"{name}, {engines} engine{'s' * (engines > 1)}, load {spec.demand.load:g}"
    return beside_simulate((f"{kind}_steps_per_s{end}", f"{kind}_share{end}"), what, beside, sizes.repetitions, SHARE)


def sessions(sizes: Sizes) -> list[Figure]:
    """The same of `ClusterRouting-v1` on agents' sessions."""
    beside = Beside("ClusterRouting-v1", SESSIONS, SESSION_ENVIRONMENTS)
    what = "ClusterRouting-v1, preset session-fleet"
    return beside_simulate(("session_steps_per_s", "session_share"), what, beside, sizes.repetitions, SESSION_SHARE)


def drawn_actions(space: gym.Space[Any]) -> list[Any]:
    space.seed(SEED)
    return [space.sample() for _ in range(ACTIONS)]


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
    return Figure.of("step_per_s", speeds, what, at_least=40_000)


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
    from experiments.benchmarks.zero_cost import ZeroCostEnv
    from servegym.envs.sb3 import Sb3VecEnv
    from servegym.tuners.config import BudgetConfig, TrainingConfig
    from servegym.tuners.learners import new_model
    from servegym.tuners.problem import problem_of
    from servegym.tuners.training import torch_threads

    # There is no limit of the divergence, so both go through as many minibatches.
    config = TrainingConfig(
        "EngineBatching-v0", "ppo", hyperparameters=PPO, reward_scale=100.0, budget=BudgetConfig(steps=1)
    )
    problem = problem_of(config)
    rollout = config.environments * PPO["n_steps"]
    shares = []
    with torch_threads(config.torch_threads):
        models = [new_model(problem, Sb3VecEnv(problem.venv)), new_model(problem, ZeroCostEnv(problem.venv))]
        for _ in range(sizes.repetitions + 1):
            seconds = [learning_s(model, sizes.ppo_rollouts * rollout) for model in models]
            shares.append(seconds[1] / seconds[0])
    shares = shares[1:]  # the first one compiles
    what = f"PPO on EngineBatching, n = {config.environments}, beside the same PPO on environments that cost nothing"
    return Figure.of("ppo_share", shares, what, at_least=0.5)

"""For each registered environment a small source of scenarios: overload, engines that fail, late news.

An environment that none is named for here is tested on what it draws by default, as small.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

import servegym
from servegym.envs.agents import Agent
from servegym.envs.env import ServingEnv
from servegym.envs.registration import ENVIRONMENTS
from servegym.scenarios.presets import EPISODES
from servegym.scenarios.ranges import Range, choose
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.state import SimulationState

IDS = tuple(name for name, _, _ in ENVIRONMENTS)
ONE = EPISODES.replaced(trace=("azure-conv",), load=4.0, slo_scale=0.4, requests=Range(15, 25))
PAIRS = ONE.replaced(prefill=2, decode=2, router="gorouting", requests=Range(20, 30))
THREE = ONE.replaced(engines=3, router="min-load", requests=Range(20, 30), signal_delay_s=0.02)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A source that draws one of some scenarios, each as likely."""

    scenarios: tuple[Scenario, ...]

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return choose(rng, self.scenarios)


@dataclasses.dataclass(frozen=True)
class Small:
    """A source of scenarios, and the arguments of the environment for it."""

    source: ServingSpec
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


SMALL = {
    "EngineBatching-v0": Small(ONE),
    "RequestRanking-v0": Small(ONE, {"slots": 6}),
    "Scheduling-v0": Small(ONE, {"slots": 6}),
    "ClusterRouting-v0": Small(
        THREE.replaced(incidents=(Incident(0.5, 1, "fail"), Incident(1.5, 1, "return"))), {"engines": 4}
    ),
    "DisaggregatedRouting-v0": Small(
        PAIRS.replaced(incidents=(Incident(0.4, 1, "drain"), Incident(0.8, 3, "fail"), Incident(1.6, 3, "return")))
    ),
    "PrefillPreemption-v0": Small(ONE.replaced(prefill=1, decode=1, router="min-load"), {"slots": 4}),
    "TierScaling-v0": Small(
        THREE.replaced(
            slo=("polyserve",), router="polyserve", scheduler="polyserve", scaler="polyserve:interval_s=0.2"
        ),
        {"engines": 3},
    ),
}


def small_of(name: str) -> Small:
    """What an environment draws by default, as small. Name one where actions make no difference in it."""
    source = gym.make(f"servegym:{name}", disable_env_checker=True).unwrapped.source
    return Small(source.replaced(trace=("azure-conv",), load=4.0, slo_scale=0.4, requests=Range(20, 30)))


SMALL |= {name: small_of(name) for name in IDS if name not in SMALL}


def make(name: str, scenario: Any = None, **arguments: Any) -> ServingEnv:
    """The environment itself, without wrappers, on its small source unless a scenario is named."""
    small = SMALL[name]
    arguments = {"scenario": small.source if scenario is None else scenario, **small.arguments, **arguments}
    return gym.make(f"servegym:{name}", disable_env_checker=True, **arguments).unwrapped


@functools.cache
def drawn(name: str, seed: int = 0) -> Scenario:
    """A scenario of the small source."""
    return SMALL[name].source(np.random.default_rng(seed))


def simulated(env: ServingEnv, scenario: Scenario) -> dict[str, bytes]:
    """What becomes of a scenario that `simulate` runs, under the scheduler that is the environment's base."""
    scheduler = getattr(env.interface, "scheduler", scenario.scheduler)
    return outcome_bytes(servegym.Simulation(dataclasses.replace(scenario, scheduler=scheduler)).run().arrays)


def outcome_bytes(run: SimulationState) -> dict[str, bytes]:
    """What has become of requests and engines, to the last byte."""
    gain = run.status["gain"].tobytes() + run.status["finished"].tobytes() + run.status["now_s"].tobytes()
    named = {field: getattr(run, field).tobytes() for field in ("requests", "outcomes", "tbt_histogram")}
    engines = run.engines.copy()
    engines["visits"] = 0  # ranks of the last batch, which are nobody's outcome
    return named | {"engines": engines.tobytes(), "gain of all": gain}


def steps(env: ServingEnv, agent: Agent, **reset: Any) -> Iterator[tuple[Any, float, bool, bool, dict[str, Any]]]:
    """What reset returns (with a reward of 0), and what each step does, to the end of the episode."""
    observation, info = env.reset(**reset)
    terminated = truncated = False
    yield observation, 0.0, terminated, truncated, info
    while not (terminated or truncated):
        step = env.step(agent.act(observation, info))
        observation, _, terminated, truncated, info = step
        yield step


def frozen(value: Any) -> Any:
    """Something that equals another only if every byte of the two is the same."""
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [frozen(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value).__name__, value


def played(env: ServingEnv, agent: Agent, **reset: Any) -> list[Any]:
    """An episode, to be compared with another."""
    return [frozen(step) for step in steps(env, agent, **reset)]

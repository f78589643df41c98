"""The agents of the gallery: in each environment its base policy, and another agent on the same episodes."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym

from experiments.gallery.agents import OneEach, ShortestInTime, SoonestAndEmptiest
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.envs.agents import Agent, BaseAgent, RandomAgent
from servegym.envs.env import ServingEnv
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

# Held-out requests, more of them than the engines can serve.
EPISODE = {"preset": "overload", "split": "test"}


def base_agent(env: ServingEnv) -> Agent:
    return BaseAgent()


def random_agent(env: ServingEnv) -> Agent:
    return RandomAgent(env.action_space, seed=0)


class Moment(NamedTuple):
    """A simulation as it stands, and what gives what pictures show beside it."""

    simulation: Simulation
    shown: Callable[[], dict[str, Any]] = dict


@dataclasses.dataclass(frozen=True)
class Player:
    """name: as the page has it. arguments: of the environment. agent: what acts in it, made for it.

    scheduler: a compiled scheduler that plays in the agent's place; one that learned sets its base's parameters itself.
    """

    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    agent: Callable[[ServingEnv], Agent] = base_agent
    scheduler: str | None = None

    def episode(self, environment: str, seed: int, **words: Any) -> Iterator[Moment]:
        """An episode at each decision and when it is over. words: what it draws beside `EPISODE`."""
        arguments = {"observation": "dict", "render_mode": "rgb_array"} | EPISODE | words | self.arguments
        made = gym.make(f"servegym:{environment}", disable_env_checker=True, **arguments)
        env = made.unwrapped
        assert isinstance(env, ServingEnv)
        observation, info = env.reset(seed=seed)
        if self.scheduler is not None:
            yield from steps_of(dataclasses.replace(env.simulation.scenario, scheduler=find_scheduler(self.scheduler)))
            return
        yield Moment(env.simulation, env.shown)
        agent, over = self.agent(env), False
        while not over:
            observation, _, terminated, truncated, info = env.step(agent.act(observation, info))
            over = terminated or truncated
            yield Moment(env.simulation, env.shown)


def steps_of(scenario: Scenario) -> Iterator[Moment]:
    """A scenario's run before each batch, and when it is over."""
    simulation = Simulation(scenario)
    while simulation.step():
        yield Moment(simulation)
    yield Moment(simulation)


BASES = {
    "EngineBatching-v0": Player("slide-batching:steps=ignore"),
    "RequestRanking-v0": Player("slide-batching:steps=ignore"),
    "Scheduling-v0": Player("expected-gain:steps=ignore"),
    "ClusterRouting-v0": Player("min-load"),
    "DisaggregatedRouting-v0": Player("gorouting"),
    "PrefillPreemption-v0": Player("flow-prefill"),
    "TierScaling-v0": Player("polyserve"),
}
OTHERS = {
    "EngineBatching-v0": Player("learned:cma-engine-batching", scheduler="learned:cma-engine-batching"),
    "RequestRanking-v0": Player("expected-gain", {"scheduler": "expected-gain"}),
    "Scheduling-v0": Player("expected-gain", {"scheduler": "expected-gain"}),
    "ClusterRouting-v0": Player("learned:cma-cluster-routing", {"router": "learned:cma-cluster-routing"}),
    "DisaggregatedRouting-v0": Player("soonest and emptiest", agent=lambda env: SoonestAndEmptiest(prefill=2)),
    "PrefillPreemption-v0": Player("shortest in time", agent=lambda env: ShortestInTime()),
    "TierScaling-v0": Player("one engine each", agent=lambda env: OneEach(4, 4)),
}


def players_of(environment: str) -> tuple[Player, Player]:
    """The base policy, and the player against it: legal actions at random where no other is named."""
    other = Player("legal actions at random", agent=random_agent)
    return BASES.get(environment, Player("base policy")), OTHERS.get(environment, other)

"""Teachers: policies whose decisions, as actions of an environment, are imitated."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

from servegym.baselines.learned.controller import control_table
from servegym.baselines.registry import router, scheduler
from servegym.envs.env import ServingEnv
from servegym.errors import TrainingError
from servegym.simulator.policies.policy import StateFields
from servegym.simulator.records.types import HOLD, REFUSE, ROUTE, STAY


class Teacher(abc.ABC):
    """A policy to imitate, as an agent of the environment that it was made for."""

    def __init__(self, env: ServingEnv):
        self.env = env

    def begin(self) -> None:  # noqa: B027 - most need nothing
        """Prepare for a new episode."""

    @abc.abstractmethod
    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        """Its action at the environment's present decision."""


class BaseTeacher(Teacher):
    """The environment's base policy."""

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return info["base_action"]


class SettingsTeacher(Teacher):
    """EngineBatching: the base scheduler with other settings, which are always the same action."""

    def __init__(self, env: ServingEnv, text: str):
        super().__init__(env)
        interface: Any = env.interface
        self.base, self.policy = interface.scheduler, scheduler(text)
        self.controls = interface.controls
        same = {**self.policy.settings, **self.base.settings}.keys() - set(self.controls)
        other = [name for name in same if self.policy.settings.get(name) != self.base.settings.get(name)]
        if self.policy.name != self.base.name or other:
            raise TrainingError(
                f"{text!r} cannot teach here; it should be {self.base.label} with other values of "
                f"{', '.join(self.controls)}"
            )

    def begin(self) -> None:
        scenario = self.env.simulation.scenario
        base, own = self.base.values(scenario.fact), self.policy.values(scenario.fact)
        table = control_table(self.base, self.controls)
        actions = []
        for name, (_, low, high, scale) in zip(self.controls, table, strict=True):
            default, value = float(base[name]), float(own[name])
            bound = high if value > default else low
            if value == default:
                actions.append(0.0)
            elif int(scale) & 1:
                actions.append(math.copysign(math.log(value / default) / math.log(bound / default), value - default))
            else:
                actions.append(math.copysign((value - default) / (bound - default), value - default))
        self.action = np.array(actions, "f4")

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return self.action


class RankingTeacher(Teacher):
    """RequestRanking: another scheduler. The action is its order of the requests in slots: scores from 1 to -1."""

    def __init__(self, env: ServingEnv, text: str):
        super().__init__(env)
        self.policy = scheduler(text)
        if self.policy.state != StateFields():
            raise TrainingError(f"{text!r} cannot teach here; it should be a scheduler that remembers nothing")

    def begin(self) -> None:
        self.numbers = self.policy.numbers(self.env.simulation.scenario.fact)

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        simulation = self.env.simulation
        arrays, slots = simulation.arrays, self.env.action_space.shape[0]  # type: ignore[index]
        engine = int(arrays.status[0].deciding_engine)
        ranks = simulation.ranks_of(self.policy, self.numbers.copy(), engine, float(arrays.status[0].now_s))
        shown = self.env.interface.layout.parts(observation)["request"][:, 0] > 0
        places = arrays.order[0, : int(shown.sum())]
        ranked = np.lexsort((places, ranks["key"][places], ranks["tier"][places]))
        scores = np.zeros(slots, "f4")
        scores[ranked] = np.linspace(1.0, -1.0, len(places)) if len(places) > 1 else 0.0
        return scores


class RoutingTeacher(Teacher):
    """ClusterRouting: another router. The base decides if it holds a request or names an engine that does not take it,
    or refuses it where the agent may not."""

    def __init__(self, env: ServingEnv, text: str):
        super().__init__(env)
        self.policy = router(text)

    def begin(self) -> None:
        scenario, router_state = self.env.simulation.scenario, self.env.simulation.router_state
        self.numbers = self.policy.numbers(scenario.fact)
        self.state = np.zeros((len(router_state.known.snapshots), len(self.policy.state.engine)))
        self.route = np.zeros(1, ROUTE)

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        simulation, route = self.env.simulation, self.route[0]
        status = simulation.arrays.status[0]
        route.engine, route.decode_engine, route.tier = HOLD, -1, STAY
        route.held_queue = simulation.router_state.route[0].held_queue
        scratch = np.zeros((self.policy.scratch.rows, simulation.arrays.scratch.shape[1]))
        context = simulation.router_context(float(status.now_s))
        context = context._replace(state=self.state, parameters=self.numbers, scratch=scratch)
        self.policy.function.entry(context, int(status.deciding_request), route)
        engine, mask = int(route.engine), info["action_mask"]
        if engine == REFUSE:
            interface: Any = self.env.interface
            engine = interface.engines
        return engine if 0 <= engine < len(mask) and mask[engine] else info["base_action"]


TEACHERS: dict[str, Any] = {
    "EngineBatching": SettingsTeacher,
    "RequestRanking": RankingTeacher,
    "ClusterRouting": RoutingTeacher,
}


def teacher_of(env: ServingEnv, text: str) -> Teacher:
    """The policy of that name as a teacher; "": the base.

    Raises TrainingError for a policy that cannot teach there, PolicyError for an unknown one.
    """
    if not text:
        return BaseTeacher(env)
    kind = type(env.interface).__name__
    if kind not in TEACHERS:
        raise TrainingError(f"{text!r} cannot teach here: in {kind} only the base policy does; it should be ''")
    return TEACHERS[kind](env, text)

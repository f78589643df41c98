"""Decision heads: how a network's outputs are decisions in an environment, and make a compiled policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import ranked
from servegym.baselines.learned.routing import CACHES, SESSIONS, measure_of, routed
from servegym.baselines.learned.scaling import choices_of, roles_of, scaled
from servegym.baselines.learned.scheduling import CONTROLS, kind_of, scheduled
from servegym.baselines.observations.fields import Layout
from servegym.envs.env import ServingEnv
from servegym.envs.interface import Interface
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import TrainingError
from servegym.scenarios.fleets import policy_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class BaseBias:
    """Where a slot's observation has the base's choice, so that a network can start by following it.

    columns: indices, among the inputs of a shared network, of the numbers that encode the choice. With outputs weights
    @ numbers + bias (float[outputs, columns], float[outputs]), the base's choice has the highest output, by a margin of
    1 (or another one, where the head says so).
    """

    columns: tuple[int, ...]
    weights: np.ndarray
    bias: np.ndarray

    @staticmethod
    def by(layout: Layout, fields: tuple[str, ...], weights: np.ndarray, bias: np.ndarray) -> BaseBias:
        """Make one from the names of fields of a slot."""
        names = [field.name for field in layout.slot_fields]
        return BaseBias(tuple(len(layout.whole_fields) + names.index(name) for name in fields), weights, bias)

    def times(self, factor: float) -> BaseBias:
        return BaseBias(self.columns, factor * self.weights, factor * self.bias)


def follow_base(
    layers: list[tuple[np.ndarray, np.ndarray]],
    activate: Callable[[np.ndarray], np.ndarray],
    base_bias: BaseBias | None,
) -> None:
    """Change (weight[outputs, inputs], bias[outputs]) of a network's layers so that it follows the base.

    Biases and the last layer's weights become 0, except for the bias to the base's choice. The inputs that encode this
    choice pass to the last layer through one unit of every hidden layer each. An input of 1 becomes
    activate(...activate(1)), for which the last layer's weights compensate. All of these weights are trained like the
    others. Raises TrainingError if a hidden layer has fewer units.
    """
    for _, bias in layers:
        bias[:] = 0.0
    *hidden, (last, bias) = layers
    last[:] = 0.0
    if base_bias is None:
        return
    carried, places = np.ones((), last.dtype), list(base_bias.columns)
    for weight, _ in hidden:
        if len(weight) < len(places):
            raise TrainingError(
                f"network.hidden: a layer of {len(weight)} units; here each should have {len(places)} or more"
            )
        for unit, place in enumerate(places):
            weight[unit] = 0.0
            weight[unit, place] = 1.0
        carried, places = activate(carried), list(range(len(places)))
    last[:, places] = base_bias.weights.astype(last.dtype) / carried
    bias[:] = base_bias.bias


@dataclasses.dataclass(frozen=True)
class DecisionHead:
    """How a network decides in an environment. part: the policy of the scenario that it replaces: "scheduler", "router"
    or "scaler". base: that policy. kind: of the network (`Shape`). outputs: for each slot if there are slots, else in
    all. is_choice: the highest output is chosen; else tanh of the outputs is the action. base_bias: see `BaseBias`;
    None: with all outputs 0 the base decides. build: maps network and name to the compiled policy.
    """

    part: str
    base: Policy
    layout: Layout
    outputs: int
    kind: str
    is_choice: bool
    base_bias: BaseBias | None
    build: Callable[[Network, str], LearnedPolicy]

    def shape(self, hidden: tuple[int, ...], activation: str = "tanh") -> Shape:
        """The shape of a network for these decisions."""
        more: dict[str, Any] = {"hidden": hidden, "activation": activation}
        more["output"] = "plain" if self.is_choice else "tanh"
        if self.kind != "dense":
            return Shape.shared_by(self.layout, self.outputs, self.kind, **more)
        return Shape.dense_on(self.layout, self.outputs, **more)

    def policy(self, network: Network, name: str = "") -> LearnedPolicy:
        """Make a compiled policy of a network. Raises PolicyError if the network does not fit."""
        return self.build(network, name)

    def with_policy(self, scenario: Scenario, policy: Policy | None = None) -> Scenario:
        """The scenario with `policy` in place of the base; None: with the base."""
        changes: dict[str, Any] = {self.part: self.base if policy is None else policy}
        return dataclasses.replace(scenario, **changes)


def head_of(env: ServingEnv | ServingVectorEnv) -> DecisionHead:
    """The head for an environment's decisions. Raises TrainingError if no compiled policy makes such decisions."""
    interface, source = env.interface, env.source
    kind = type(interface).__name__
    if kind not in HEADS:
        raise TrainingError(f"{kind}: no compiled policy makes its decisions; train in one of {', '.join(HEADS)}")
    return HEADS[kind](interface, source)


def _batching(interface: Any, source: Any) -> DecisionHead:
    base, controls = interface.scheduler, interface.controls
    return DecisionHead(
        "scheduler", base, interface.layout, len(controls), kind="dense", is_choice=False, base_bias=None,
        build=lambda network, name: controlled(base, controls, network, name),
    )  # fmt: skip


def _ranking(interface: Any, source: Any) -> DecisionHead:
    base, slots = interface.scheduler, interface.slots
    base_bias = BaseBias.by(
        interface.layout, ("position",), np.array([[-1.0]]), np.zeros(1)
    )  # earlier in the base's order is higher
    return DecisionHead(
        "scheduler", base, interface.layout, 1, kind="shared", is_choice=False, base_bias=base_bias,
        build=lambda network, name: ranked(base, network, slots, name),
    )  # fmt: skip


def _scheduling(interface: Any, source: Any) -> DecisionHead:
    base, slots = interface.scheduler, interface.slots
    return DecisionHead(
        "scheduler", base, interface.layout, CONTROLS + (slots > 0), kind=kind_of(slots), is_choice=False,
        base_bias=None, build=lambda network, name: scheduled(base, network, slots, name, interface.sees),
    )  # fmt: skip


def _routing(interface: Any, source: Any) -> DecisionHead:
    base, sees = _base_of(source, "router"), interface.sees
    # If the observation has the base's costs, engines with nearly equal costs start with nearly equal outputs.
    by_costs = sees in (CACHES, SESSIONS) and measure_of(base) >= 0
    field, weight = ("base_gap", -1.0) if by_costs else ("chosen", 1.0)
    base_bias = BaseBias.by(interface.layout, (field,), np.array([[weight]]), np.zeros(1))
    return DecisionHead(
        "router", base, interface.layout, 1, kind="shared", is_choice=True, base_bias=base_bias,
        build=lambda network, name: routed(base, network, interface.choices, name, sees, interface.refuse),
    )  # fmt: skip


# Where the action includes roles, in leads of the base's role over the other one: that of an engine's place over other
# places; and by how much less that of the next engine is, so that small outputs change its role and no other's.
PLACES_LEAD, NEXT_LESS = 10.0, 0.6


def _scaling(interface: Any, source: Any) -> DecisionHead:
    base, places = _base_of(source, "scaler"), interface.tiers + 1
    weights, bias = np.zeros((choices_of(interface.tiers), places + 1)), np.zeros(choices_of(interface.tiers))
    for place in range(places):  # of each place the choices open and closed
        weights[2 * place : 2 * place + 2, place] = 1.0
        weights[2 * place : 2 * place + 2, places] = (-1.0, 1.0)
        bias[2 * place] = 1.0
    fields = ("base_to_pool", *(f"base_to_tier_{t}" for t in range(interface.tiers)), "base_closes")
    if roles_of(interface.sees) == 2:  # all of these for an engine that prefills, then for one that decodes
        weights, bias = PLACES_LEAD * np.tile(weights, (2, 1)), PLACES_LEAD * np.tile(bias, 2)
        by_role = np.array([[1.0, 0.0, NEXT_LESS], [0.0, 1.0, 0.0]])
        weights = np.hstack([weights, np.repeat(by_role, len(bias) // 2, axis=0)])
        fields += ("base_to_prefill", "base_to_decode", "next")
    base_bias = BaseBias.by(interface.layout, fields, weights, bias)
    return DecisionHead(
        "scaler", base, interface.layout, len(weights), kind="shared", is_choice=True, base_bias=base_bias,
        build=lambda network, name: scaled(base, network, interface.engines, name, interface.sees),
    )  # fmt: skip


HEADS: dict[str, Callable[[Any, Any], DecisionHead]] = {
    "EngineBatching": _batching,
    "RequestRanking": _ranking,
    "Scheduling": _scheduling,
    "ClusterRouting": _routing,
    "TierScaling": _scaling,
}


def _base_of(source: Any, part: str) -> Policy:
    """The policy of that part in a source's scenarios. Raises TrainingError if it names none."""
    if isinstance(source, ServingSpec):
        base = policy_of(source, part)
    else:
        base = getattr(getattr(source, "scenario", None), part, None)
    if base is None:
        raise TrainingError(f"the source of scenarios names no {part}; it should name the base policy of the training")
    return base


class NetworkAgent:
    """A network as an agent, which acts in a single environment as its compiled policy does in `simulate`."""

    def __init__(self, interface: Interface, network: Network):
        self.interface, self.network = interface, network
        self.has_slots = network.shape.has_slots

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        outputs = self.network(observation, self._filled(observation) if self.has_slots else None)
        space = self.interface.action_space
        if isinstance(space, gym.spaces.Box):
            return outputs.ravel()
        base = info["base_action"]
        if isinstance(space, gym.spaces.Discrete):
            return self._best(outputs.ravel(), info["action_mask"], int(base))
        return np.array([self._best(row, np.ones(len(row)), int(own)) for row, own in zip(outputs, base, strict=True)])

    def _filled(self, observation: np.ndarray) -> int:
        """The slots up to the last filled one; all of them if the last one is that of refusing."""
        layout = self.interface.layout
        if getattr(self.interface, "refuse", False):
            return layout.slots
        return int(np.flatnonzero(layout.parts(observation)[layout.slot].any(-1)).max(initial=-1)) + 1

    @staticmethod
    def _best(scores: np.ndarray, mask: np.ndarray, base: int) -> int:
        """The legal choice with the highest score; among equal ones the base's, else the first."""
        legal = np.where(mask, scores, -np.inf)
        return base if scores[base] >= legal.max() else int(legal.argmax())

"""PyTorch networks whose actors give the same numbers as the compiled policies made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from servegym.baselines.learned.network import Network, Shape
from servegym.tuners.decision_head import BaseBias, follow_base

# To the type checker these bases are anything: `Compilable` gives them another `action_net`.
_Policy: Any = object
_ActorCritic: Any = ActorCriticPolicy
_MaskableActorCritic: Any = MaskableActorCriticPolicy
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class Actor(nn.Module):
    """A network of `Shape`: float[n, observation_size] -> float[n, output_size]."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.layers: Any = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in shape.layers)
        self.activation: Any = ACTIVATIONS[shape.activation]()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        shape, first = self.shape, self.layers[0]
        if shape.has_slots:
            # The numbers outside of slots pass through their part of the first layer once, not once for each slot.
            own = observation[..., shape.whole :].unflatten(-1, (shape.slots, shape.slot))
            of_whole = nn.functional.linear(observation[..., : shape.whole], first.weight[:, : shape.whole], first.bias)
            numbers = nn.functional.linear(own, first.weight[:, shape.whole :]) + of_whole.unsqueeze(-2)
            if shape.is_joint:  # an empty slot before the others
                numbers = torch.cat([of_whole.unsqueeze(-2), numbers], -2)
        else:
            numbers = first(observation)
        for layer in self.layers[1:]:
            numbers = layer(self.activation(numbers))
        if shape.is_joint:
            numbers = torch.cat([numbers[..., 0, 1:], numbers[..., 1:, 0]], -1)
        numbers = numbers.flatten(-2) if shape.is_shared else numbers
        return torch.tanh(numbers) if shape.output == "tanh" else numbers


@torch.no_grad()
def begin_with_base(actor: Actor, base_bias: BaseBias | None) -> None:
    """Set weights with which the actor follows the base policy (`follow_base`); hidden layers start orthogonal."""
    for layer in actor.layers[:-1]:
        nn.init.orthogonal_(layer.weight, float(np.sqrt(2)))
    layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in actor.layers]  # the same memory
    follow_base(layers, lambda number: actor.activation(torch.as_tensor(number)).numpy(), base_bias)


@torch.no_grad()
def load_network(layers: list[nn.Linear], network: Network) -> None:
    """Copy a network's weights into linear layers."""
    for layer, (weight, bias) in zip(layers, network.layers, strict=True):
        layer.weight[:], layer.bias[:] = torch.as_tensor(weight.copy()), torch.as_tensor(bias.copy())


class Compilable(_Policy):
    """A policy of Stable-Baselines3 with an `Actor` in place of its `action_net`.

    shape, base_bias: of the actor, and of its first weights (`begin_with_base`). If slots are scored, the noise of all
    scores has one standard deviation; the scores of empty slots are noise of deviation 1 without a gradient.
    """

    log_std: Any

    def __init__(self, *args: Any, shape: Shape, base_bias: BaseBias | None = None, **more: Any):
        self.shape, self.base_bias = shape, base_bias
        super().__init__(*args, **more)  # calls _build

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = Actor(self.shape)
        begin_with_base(self.action_net, self.base_bias)
        if self.shape.has_slots and hasattr(self, "log_std"):
            self.log_std = nn.Parameter(self.log_std.detach()[: self.of_whole + 1])
        parameters = self.parameters()
        self.optimizer = self.optimizer_class(parameters, lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Distribution:
        if not (self.shape.has_slots and isinstance(self.action_dist, DiagGaussianDistribution)):
            return super()._get_action_dist_from_latent(latent_pi)
        present = latent_pi[..., self.shape.whole :: self.shape.slot] > 0
        always = torch.ones_like(present[..., : self.of_whole])
        present = torch.cat([always, present], -1)
        mean = torch.where(present, self.action_net(latent_pi), 0.0)
        of_slots = self.log_std[self.of_whole :].expand(self.shape.slots)
        log_std = torch.cat([self.log_std[: self.of_whole], of_slots])
        return self.action_dist.proba_distribution(mean, torch.where(present, log_std, 0.0))

    @property
    def of_whole(self) -> int:
        """Number of action components that belong to no slot."""
        return self.shape.outputs - 1 if self.shape.is_joint else 0

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return data | {"shape": self.shape, "base_bias": self.base_bias}


class CompilablePolicy(Compilable, _ActorCritic):
    """For PPO."""


class MaskableCompilablePolicy(Compilable, _MaskableActorCritic):
    """For MaskablePPO."""


def actor_layers(model: Any) -> list[nn.Linear]:
    """The linear layers of a model's `Actor`, in order."""
    return list(model.policy.action_net.layers)


def network_of(layers: list[nn.Linear], shape: Shape) -> Network:
    """Convert an actor to a network with the same outputs in float64, to 1e-9. Raises PolicyError if they differ."""
    arrays = [(layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy()) for layer in layers]
    return Network.from_layers(shape, arrays)

"""From a trained actor to a network of plain numbers, and to a compiled policy in a file."""

from __future__ import annotations

from typing import Any

from torch import nn

from servegym.baselines.learned.network import Network, Shape
from servegym.tuners.actors import Actor


def actor_layers(model: Any) -> list[nn.Linear]:
    """The linear layers of a model's `Actor`, in order."""
    return list(model.policy.action_net.layers)


def network_of(layers: list[nn.Linear], shape: Shape) -> Network:
    """The network whose outputs are the actor's in float64, to 1e-9. Raises PolicyError where they do not fit."""
    arrays = [(layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy()) for layer in layers]
    return Network.from_layers(shape, arrays)


def actor_in_float64(layers: list[nn.Linear], shape: Shape) -> Actor:
    """The actor in PyTorch, cast to float64: what a network is compared with."""
    actor = Actor(shape).double()
    for own, layer in zip(actor.layers, layers, strict=True):
        own.load_state_dict(layer.state_dict())
    return actor

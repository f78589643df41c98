"""A trained actor as a network of numbers, and that as a compiled policy in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from servegym.baselines.learned.artifact import save
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network, Shape
from servegym.tuners.actors import Actor
from servegym.tuners.config import TrainingConfig
from servegym.tuners.problem import Problem
from servegym.tuners.runs import versions


def actor_layers(model: Any) -> list[nn.Linear]:
    """The linear layers of a model's actor, in order: an `Actor`, or that of SAC."""
    actor = getattr(model.policy, "actor", None)
    if actor is None:
        return list(model.policy.action_net.layers)
    return [layer for layer in actor.latent_pi if isinstance(layer, nn.Linear)] + [actor.mu]


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


def save_policy(problem: Problem, network: Network, path: Path, **how: Any) -> LearnedPolicy:
    """Write the network's policy to a .json file with how it came about; returns the policy.

    how: more to say of it: steps, minutes, validation.
    """
    policy = problem.form.policy(network)
    save(policy, path, provenance(problem, **how))
    return policy


def provenance(problem: Problem, **how: Any) -> dict[str, Any]:
    """What an artifact says of a training: what it was trained on, the configuration, versions."""
    config: TrainingConfig = problem.config
    return {
        "trained_on": problem.trained_on,
        "training": config.name,
        "algorithm": config.algorithm,
        "environment": config.environment,
        "seed": config.seed,
        **how,
        "config": config.to_json(),
        "versions": versions(),
    }

"""A user's network as a compiled policy: networks to train with Stable-Baselines3, and the export of one that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from servegym.baselines.artifact.files import save_policy
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Shape
from servegym.errors import TrainingError
from servegym.evaluation.identity import versions
from servegym.scenarios.sampling import SPLITS
from servegym.scenarios.spec import ServingSpec
from servegym.tuners.actors import ACTIVATIONS as MODULES
from servegym.tuners.actors import Actor, CompilablePolicy, MaskableCompilablePolicy, network_of
from servegym.tuners.config import NetworkConfig
from servegym.tuners.decision_head import DecisionHead, head_of
from servegym.tuners.problem import cases_of
from servegym.tuners.wrapped import check_wrappers, servegym_env

ACTIVATIONS: dict[type, str] = {module: name for name, module in MODULES.items()}
PASSED_OVER = (nn.Identity, nn.Flatten, nn.Dropout)  # layers without effect on deterministic decisions
SLOTS = (
    "it scores each slot by the numbers of the whole and of the slot, with the same weights for all: train one made by "
    "servegym.sb3_policy(env)"
)


def sb3_policy(env: Any, **network: Any) -> tuple[Any, dict[str, Any]]:
    """Return a policy class for PPO, or for MaskablePPO where actions have masks, and its `policy_kwargs`. `export_sb3`
    takes the model, which decides at first as the base does.

        policy, arguments = servegym.sb3_policy(envs, hidden=(16,), base_bias=1.0)
        model = MaskablePPO(policy, Sb3VecEnv(envs), policy_kwargs=arguments)

    env: the environment, or a vector. network: fields of a `NetworkConfig` (tuners/config.py): hidden, activation,
    critic, base_bias, log_std. Raises TrainingError if no compiled policy makes the environment's decisions.
    """
    made = servegym_env(env)
    policy = MaskableCompilablePolicy if made.interface.choices else CompilablePolicy
    return policy, policy_arguments(head_of(made), NetworkConfig(**network), made.interface.action_space)


def policy_arguments(head: DecisionHead, network: NetworkConfig, actions: gym.Space) -> dict[str, Any]:
    """The `policy_kwargs` of a `Compilable` policy whose actor is a network for these decisions."""
    base_bias = head.base_bias if network.base_bias > 0 else None
    arguments: dict[str, Any] = {
        "shape": head.shape(tuple(network.hidden), network.activation),
        "base_bias": base_bias and base_bias.times(network.base_bias),
        "net_arch": {"pi": [], "vf": list(network.critic)},  # the actor takes the observation as it is
        "activation_fn": MODULES[network.activation],
    }
    if isinstance(actions, gym.spaces.Box):
        arguments["log_std_init"] = network.log_std
    return arguments


def export_sb3(model: Any, env: Any, path: str | Path, trained_on: Mapping[str, Any] | None = None) -> LearnedPolicy:
    """Write the actor of a model of Stable-Baselines3 ("MlpPolicy" of PPO, A2C, SAC, TD3, ...; or that of
    `sb3_policy`) to path, a .json file, as a compiled policy; returns the policy.

        servegym.export_sb3(model, env, "mine.json")    # then: servegym compare --scheduler learned:mine.json

    It decides as `model.predict(observation, deterministic=True)` does. env: the training environment, or an equal one.
    trained_on: {"traces": [...], "devices": [...], "loads": [...], "seeds": [...]}; None: what the environment draws.

    Raises TrainingError for an actor or an environment that cannot become a compiled policy, and for a wrapper that
    changes observations or actions.
    """
    trained_in = getattr(model, "get_env", lambda: None)()
    if trained_in is not None:
        check_wrappers(trained_in)
    return export_module(_actor_of(model.policy), env, path, trained_on)


def export_module(
    module: nn.Module, env: Any, path: str | Path, trained_on: Mapping[str, Any] | None = None
) -> LearnedPolicy:
    """Write a PyTorch network to path, a .json file, as a compiled policy; returns the policy.

    module: nn.Linear layers one after the other with nn.Tanh between all of them, or nn.ReLU; its outputs are the
    action, at once or through a last nn.Tanh, and what is outside -1 to 1 counts as the end. Where the action is of
    slots (`RequestRanking-v0`, `ClusterRouting-v0`, ...), it is a network for one slot, or an `Actor`
    (`tuners/actors.py`). env, trained_on: as of `export_sb3`.

    Raises TrainingError for a module or an environment of which no compiled policy can be made.
    """
    check_wrappers(env)
    made = servegym_env(env)
    head = head_of(made)
    if isinstance(module, Actor):
        layers, shape = list(module.layers), module.shape
    else:
        layers, activation, output = _layers_of(module)
        hidden = tuple(layer.out_features for layer in layers[:-1])
        shape = dataclasses.replace(head.shape(hidden, activation), output=output)
        _check_fits(layers, shape, head)
        _check_is_a_row(module, layers, shape)
    policy = head.policy(network_of(layers, shape))
    provenance = {"trained_on": dict(trained_on) if trained_on else _cases_of(made.source), "versions": versions()}
    save_policy(policy, path, provenance | {"environment": type(made.interface).__name__})
    return policy


def _actor_of(policy: Any) -> nn.Module:
    """The part of a policy of Stable-Baselines3 that computes its deterministic action."""
    extractor = getattr(getattr(policy, "actor", None), "features_extractor", None) or policy.features_extractor
    if list(extractor.parameters()):
        raise TrainingError(
            f"its features come from a {type(extractor).__name__}; they should be the observation itself"
        )
    actor = getattr(policy, "actor", None)
    if actor is not None:  # SAC and TD3: SAC's goes through tanh
        return nn.Sequential(actor.latent_pi, actor.mu, nn.Tanh()) if hasattr(actor, "latent_pi") else actor.mu
    if isinstance(policy.action_net, Actor):
        return policy.action_net
    return nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net)


def _layers_of(module: nn.Module) -> tuple[list[Any], str, str]:
    """The linear layers of a module in order, the activation between them, and the activation of the outputs."""
    leaves = [leaf for leaf in module.modules() if not list(leaf.children()) and not isinstance(leaf, PASSED_OVER)]
    output = "tanh" if len(leaves) % 2 == 0 else "plain"
    layers, between = leaves[::2], leaves[1:-1:2]
    kinds = {type(leaf) for leaf in between}
    right = leaves and all(isinstance(layer, nn.Linear) and layer.bias is not None for layer in layers)
    if output == "tanh":
        right = right and isinstance(leaves[-1], nn.Tanh)
    if not right or len(kinds) > 1 or not kinds <= ACTIVATIONS.keys():
        said = ", ".join(type(leaf).__name__ for leaf in leaves) or "nothing"
        raise TrainingError(
            f"the module is {said}; it should be Linear layers with biases, Tanh or ReLU between all of them, and "
            "after the last nothing, or Tanh"
        )
    return layers, ACTIVATIONS[kinds.pop()] if kinds else "tanh", output


def _check_fits(layers: list[Any], shape: Shape, head: DecisionHead) -> None:
    (inputs, _), (_, outputs) = shape.layers[0], shape.layers[-1]
    if (layers[0].in_features, layers[-1].out_features) != (inputs, outputs):
        why = "" if head.kind == "dense" else f"; {SLOTS}"
        raise TrainingError(
            f"the network takes {layers[0].in_features} numbers and gives {layers[-1].out_features}; here it should "
            f"take {inputs} and give {outputs}{why}"
        )


@torch.no_grad()
def _check_is_a_row(module: nn.Module, layers: list[Any], shape: Shape) -> None:
    """Raise TrainingError for a module that is not simply its layers in sequence."""
    numbers = torch.as_tensor(np.random.default_rng(0).normal(size=(8, layers[0].in_features)), dtype=torch.float32)
    was_training, found = module.training, numbers
    activation = torch.tanh if shape.activation == "tanh" else torch.relu
    for layer in layers[:-1]:
        found = activation(layer(found))
    found = layers[-1](found)
    found = torch.tanh(found) if shape.output == "tanh" else found
    said = module.eval()(numbers)
    module.train(was_training)
    if said.shape != found.shape or not torch.allclose(said, found, atol=1e-5):
        raise TrainingError("the module is not its layers one after the other; it should be")


def _cases_of(source: Any) -> dict[str, Any]:
    """The cases that an environment draws, in the form of `trained_on`."""
    if not isinstance(source, ServingSpec):
        raise TrainingError(
            'the training cases are unknown, as the environment has given scenarios; give trained_on={"traces": [...], '
            '"devices": [...], "loads": [...], "seeds": [{"first": 0, "last": 99}]}'
        )
    return cases_of(source, SPLITS[source.demand.split or "train"])

"""The problem of a training, made from its configuration: environments, scenarios, and the network's decision head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.network import Shape
from servegym.envs.registration import NAMES, register_all
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import ServegymError, SpecError, TrainingError
from servegym.scenarios.presets import spelled_out
from servegym.scenarios.sampling import SPLITS, draw_episode
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import listed_json
from servegym.traces.workloads import workload_notes
from servegym.tuners.config import NAMESPACE, TrainingConfig
from servegym.tuners.decision_head import DecisionHead, head_of


@dataclasses.dataclass(frozen=True)
class Problem:
    """venv: the environments, not yet reset. source: of their scenarios. head, shape: of the network."""

    config: TrainingConfig
    venv: ServingVectorEnv
    source: ServingSpec
    head: DecisionHead
    shape: Shape

    @property
    def validation_source(self) -> ServingSpec:
        """The source of validation scenarios: other requests of the same distribution."""
        return self.source.with_overrides({"split": "validation"})

    @property
    def notes(self) -> list[str]:
        """Repairs to traces, and changes by recipes, in the scenarios of validation."""
        config, source = self.config.validation, self.validation_source
        seeds = range(config.first_seed, config.first_seed + config.scenarios)
        drawn = (draw_episode(source, np.random.default_rng(seed)).workload for seed in seeds)
        return list(dict.fromkeys(note for workload in drawn for note in workload_notes(workload.provenance)))

    @property
    def trained_on(self) -> dict[str, Any]:
        """The training cases, which an evaluation has to avoid: traces, devices, loads, seeds."""
        # Validation chose the policy.
        return cases_of(self.source, range(SPLITS["train"].start, SPLITS["validation"].stop))


def cases_of(source: ServingSpec, seeds: range) -> dict[str, Any]:
    """The cases that a source draws with these seeds: traces, devices, loads (none with a rate), seeds."""
    devices = listed_json(source["device"])
    named = [pool.device for pool in source["pools"] or ()]
    return {
        "traces": listed_json(source["trace"]),
        "devices": list(dict.fromkeys(one for name in named for one in ([name] if name else devices))) or devices,
        "loads": [] if source["load"] is None else listed_json(source["load"]),
        "seeds": [{"first": seeds.start, "last": seeds.stop - 1}],
    }


def problem_of(config: TrainingConfig) -> Problem:
    """Make the problem. Raises TrainingError for invalid environments, arguments or scenarios, or if nothing is to
    learn.
    """
    register_all()
    if config.environment not in NAMES:
        raise TrainingError(f"environment is {config.environment!r}; it should be one of {', '.join(NAMES)}")
    arguments = plain_arguments(config)
    try:
        made = gym.make_vec(
            f"{NAMESPACE}{config.environment}",
            num_envs=config.environments,
            vectorization_mode="vector_entry_point",
            **arguments,
        )
    except (TypeError, SpecError) as error:
        raise TrainingError(f"arguments of {config.environment}: {error}") from None
    venv = made.unwrapped
    assert isinstance(venv, ServingVectorEnv)
    try:
        source = venv.source.with_overrides(spelled_out(config.scenarios))  # type: ignore[attr-defined]
    except ServegymError as error:
        raise TrainingError(f"scenarios: {error}") from None
    if source.demand.split != "train":
        raise TrainingError(
            f"scenarios.split is {source.demand.split!r}; training uses 'train', the others are for evaluation"
        )
    venv.source = source
    head = head_of(venv)
    return Problem(config, venv, source, head, head.shape(config.network.hidden, config.network.activation))


def plain_arguments(config: TrainingConfig) -> Mapping[str, Any]:
    """The environment's arguments: lists as tuples; the discount of shaping, if not given, the algorithm's."""
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in config.arguments.items()}
    if "scenario" in arguments:
        raise TrainingError("arguments.scenario: describe the scenarios under `scenarios`")
    if arguments.get("shaping") and "discount" not in arguments and "gamma" in config.hyperparameters:
        arguments["discount"] = config.hyperparameters["gamma"]
    return arguments

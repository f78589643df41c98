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
from servegym.errors import ServegymError, TrainingError
from servegym.scenarios.sampling import SPLITS, draw_episode
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import listed_json
from servegym.traces.workloads import workload_notes
from servegym.tuners.config import NAMESPACE, TrainingConfig, from_plain
from servegym.tuners.decision_head import DecisionHead, head_of
from servegym.tuners.mixture import Mixture, mixture_of, union_of


@dataclasses.dataclass(frozen=True)
class Problem:
    """venv: the environments, not yet reset. source: of their scenarios. head, shape: of the network."""

    config: TrainingConfig
    venv: ServingVectorEnv
    source: Mixture
    head: DecisionHead
    shape: Shape

    @property
    def validation_source(self) -> Mixture:
        """The source of validation scenarios: other requests of the same distribution."""
        return self.source.with_overrides({"split": "validation"})

    @property
    def notes(self) -> list[str]:
        """Repairs to traces, and changes by recipes, in the scenarios of validation."""
        config, source = self.config.validation, self.validation_source
        seeds = range(config.first_seed, config.first_seed + config.scenarios)
        rngs = map(np.random.default_rng, seeds)
        drawn = (draw_episode(source.spec(rng), rng).workload for rng in rngs)
        return list(dict.fromkeys(note for workload in drawn for note in workload_notes(workload.provenance)))

    @property
    def trained_on(self) -> dict[str, Any]:
        """The training cases, which an evaluation has to avoid: traces, devices, loads, seeds."""
        # Validation chose the policy.
        seeds = range(SPLITS["train"].start, SPLITS["validation"].stop)
        return union_of([cases_of(spec, seeds) for spec in self.source.specs])


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
    except (TypeError, ServegymError) as error:
        raise TrainingError(f"arguments of {config.environment}: {error}") from None
    venv = made.unwrapped
    assert isinstance(venv, ServingVectorEnv)
    source = mixture_of(config, venv.source)  # type: ignore[arg-type]
    heads = []
    for venv.source in source.specs:
        heads.append(head_of(venv))
    if other := [head.base.label for head in heads if head.base.label != heads[0].base.label]:
        part, base = heads[0].part, heads[0].base.label
        raise TrainingError(f"mixture: a {part} {other[0]!r} beside {base!r}; all scenarios should have the same base")
    venv.source, head = source, heads[0]
    return Problem(config, venv, source, head, head.shape(config.network.hidden, config.network.activation))


def plain_arguments(config: TrainingConfig) -> Mapping[str, Any]:
    """The environment's arguments: lists as tuples; the discount of shaping, if not given, the algorithm's."""
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in config.arguments.items()}
    if "scenario" in arguments:
        raise TrainingError("arguments.scenario: describe the scenarios under `scenarios`")
    for name, kind in (("shaping", float), ("discount", float), ("sees", str)):
        if name in arguments:
            arguments[name] = from_plain(kind, arguments[name], f"arguments.{name}")
    if arguments.get("shaping") and "discount" not in arguments and "gamma" in config.hyperparameters:
        arguments["discount"] = config.hyperparameters["gamma"]
    return arguments

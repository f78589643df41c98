"""A policy as an entry of an artifact's document: name, every parameter and, if it is learned, base and network."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servegym.baselines import load
from servegym.baselines.artifact import weights
from servegym.baselines.artifact.artifact import ArtifactError
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Shape
from servegym.baselines.learned.ranking import ranked
from servegym.baselines.learned.routing import LAYOUTS as ROUTING_LAYOUTS
from servegym.baselines.learned.routing import REFUSES, routed
from servegym.baselines.learned.scaling import LAYOUTS as SCALING_LAYOUTS
from servegym.baselines.learned.scaling import scaled
from servegym.baselines.learned.scheduling import LAYOUTS as SCHEDULING_LAYOUTS
from servegym.baselines.learned.scheduling import scheduled
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.fields import Layout
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.relations import relations_of
from servegym.simulator.policies.parameters import current_name
from servegym.simulator.policies.policy import Fact, Parameter, Policy, get_policy

# What each kind of learned policy can see: names of layouts.
LAYOUTS_OF = {
    "controller": ("engine",), "ranking": ("queue",), "scheduling": tuple(SCHEDULING_LAYOUTS),
    "routing": tuple(ROUTING_LAYOUTS), "scaling": tuple(SCALING_LAYOUTS),
}  # fmt: skip
LAYOUTS: dict[str, Callable[[int], Layout]] = {
    "engine": lambda slots: engine_layout(),
    "queue": queue_layout,
    **SCHEDULING_LAYOUTS,
    **ROUTING_LAYOUTS,
    **SCALING_LAYOUTS,
}
# Parameters added to policies since artifacts exist, with the value under which a policy decides as before.
NO_STEPS = {"steps": "ignore", "step_tokens": 0}
ADDED: dict[str, dict[str, Any]] = {
    "slide-batching": NO_STEPS, "expected-gain": NO_STEPS, "qoserve": NO_STEPS,
    "edf": {"budget": "fixed"}, "sjf": {"budget": "fixed"}, "polyserve": {"margin": 0.0},
    "vllm-v1": {"long_prefill_token_threshold": 0},
    "predicted-cost": {"refuse": 0.0, "adapter": 0.0, "stall": 0.0}, "prefix-affinity": {"refuse": 0.0},
    "pd-ratio": {"outlast": 0.0, "first_s": 1e9},
}  # fmt: skip
FACTS = ("min_tpot_slo_s", "profiled_token_budget", "step_tokens")


def entry_of(policy: Policy, weights_file: str) -> tuple[dict[str, Any], bytes]:
    """Return the policy's entry in the document, and its weights as safetensors (empty without a network).

    weights_file: name of the weights' file. Raises ArtifactError if a learned policy has no network to save.
    """
    if not isinstance(policy, LearnedPolicy):
        return _named(checked(policy)) | {"learned": None}, b""
    if policy.network is None or policy.base is None or policy.layout is None:
        raise ArtifactError(f"{policy.name} has no network to save")
    if policy.settings:
        raise ArtifactError(f"{policy.label}: save it without settings of its own; those of its base are kept")
    data = weights.packed(policy.network)
    learned = {
        "way": policy.head,
        "controls": list(policy.controls),
        "observation": observation_of(policy.head, policy.layout),
        "network": policy.network.shape.to_json(),
        "weights": {"file": weights_file, "sha256": hashlib.sha256(data).hexdigest()},
    }
    return _named(policy.base) | {"learned": learned}, data


def policy_of(entry: Mapping[str, Any], folder: Path, name: str) -> Policy:
    """Build the policy that an entry describes. folder: where its weights are. name: for one with a network.

    Raises PolicyError for anything that this version does not know, and for values that are missing or out of range.
    """
    load()
    base = _with_parameters(get_policy(entry["kind"], entry["name"]), entry["parameters"])
    learned = entry["learned"]
    if learned is None:
        return base
    head, slots = learned["way"], int(learned["observation"]["slots"])
    _check_observation(head, learned["observation"], slots)
    network = weights.unpacked(Shape.from_json(learned["network"]), folder, **learned["weights"])
    if head == "controller":
        return controlled(base, tuple(learned["controls"]), network, name)
    controls, sees = learned["controls"], learned["observation"]["layout"]
    if head == "routing" and controls in ([], [REFUSES]):
        return routed(base, network, slots, name, sees, refuse=bool(controls))
    if controls:
        right = f"[] or [{REFUSES!r}]" if head == "routing" else "[]"
        raise ArtifactError(f"controls of a {head}: {controls}; it should be {right}")
    if head == "ranking":
        return ranked(base, network, slots, name)
    return {"scheduling": scheduled, "scaling": scaled}[head](base, network, slots, name, sees)


def observation_of(head: str, layout: Layout) -> dict[str, Any]:
    """Return the observation of a learned policy as in its entry. head: of the policy."""
    digest = fields_digest(layout)
    name = next(name for name in LAYOUTS_OF[head] if fields_digest(LAYOUTS[name](layout.slots)) == digest)
    return {"layout": name, "slots": layout.slots, "fields": digest}


def fields_digest(layout: Layout) -> str:
    """Return a digest of names and bounds of an observation's numbers, in order, whatever the number of slots."""
    parts = [(layout.whole, layout.whole_fields), (layout.slot, layout.slot_fields)]
    named = [(part, field.name, float(field.low), float(field.high)) for part, fields in parts for field in fields]
    return hashlib.sha256(repr(named).encode()).hexdigest()[:16]


def written_parameters(policy: Policy) -> dict[str, Any]:
    """Return all parameters with their values, so that a later version with other defaults decides the same.

    A default that depends on the workload is written as such: {"fact": "min_tpot_slo_s", "factor": 0.9}.
    """
    return {
        name: {"fact": value.name, "factor": value.factor} if isinstance(value, Fact) else value
        for name, value in policy.chosen().items()
    }


def _named(policy: Policy) -> dict[str, Any]:
    return {"kind": policy.kind, "name": policy.name, "parameters": written_parameters(policy)}


def _with_parameters(policy: Policy, written: Mapping[str, Any]) -> Policy:
    """Return the policy with these values. Values equal to defaults are not set, which keeps its label short."""
    names = [parameter.name for parameter in policy.parameters]
    added = {name: value for name, value in ADDED.get(policy.name, {}).items() if name in names}
    written = added | {current_name(name, names): value for name, value in written.items()}
    if unknown := [name for name in written if name not in names]:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ArtifactError(f"{policy.name} has no parameter {unknown[0]}; {has}")
    if missing := [name for name in names if name not in written]:
        raise ArtifactError(f"{policy.name}: parameter {missing[0]} is missing; all are written: {', '.join(names)}")
    values = {parameter.name: _value(policy, parameter, written[parameter.name]) for parameter in policy.parameters}
    # With all parameters set, defaults that depend on others have their final values.
    whole = policy.with_settings(**{name: value for name, value in values.items() if not isinstance(value, Fact)})
    settings, parameters = {}, []
    for parameter in policy.parameters:
        value = values[parameter.name]
        if value != whole.default_of(parameter):
            if isinstance(value, Fact):
                parameter = dataclasses.replace(parameter, default=value)
            else:
                settings[parameter.name] = value
        parameters.append(parameter)
    if tuple(parameters) != policy.parameters:
        policy = dataclasses.replace(policy, parameters=tuple(parameters))
    return checked(policy.with_settings(**settings))


def checked(policy: Policy) -> Policy:
    """Return the policy if its parameters keep their relations (relations.py). Raises ArtifactError."""
    values = policy.chosen()
    for relation in relations_of(policy):
        lower, upper = values[relation.lower], values[relation.upper]
        if isinstance(lower, int | float) and isinstance(upper, int | float) and not lower < upper:
            raise ArtifactError(f"{policy.label}: {relation.lower} should be below {relation.upper}")
    return policy


def _value(policy: Policy, parameter: Parameter, written: Any) -> Any:
    """Return a parameter's value from the document: a number, a choice, or a fact. Raises PolicyError."""
    where = f"{policy.name}: {parameter.name}"
    if isinstance(written, dict):
        of_facts = any(isinstance(default, Fact) for default in parameter.defaults)
        if not of_facts or written["fact"] not in FACTS:
            expected = f"a fact of {', '.join(FACTS)}" if of_facts else "a value"
            raise ArtifactError(f"{where} is the fact {written['fact']!r}; it should be {expected}")
        return Fact(written["fact"], float(written["factor"]))
    if isinstance(written, str) != bool(parameter.choices):
        expected = f"one of {', '.join(parameter.choices)}" if parameter.choices else "a number"
        raise ArtifactError(f"{where} is {written!r}; it should be {expected}")
    return parameter.check(written, policy.name)


def _check_observation(head: str, observation: Mapping[str, Any], slots: int) -> None:
    layout = observation["layout"]
    if layout not in LAYOUTS_OF[head]:
        raise ArtifactError(f"a {head} that sees {layout}; it should see {' or '.join(LAYOUTS_OF[head])}")
    digest = fields_digest(LAYOUTS[layout](slots))
    if observation["fields"] != digest:
        raise ArtifactError(
            f"it was made for other {layout} observations ({observation['fields']}; this version has {digest})"
        )

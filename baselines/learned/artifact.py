"""Policies as files: a JSON document (artifact.schema.json), and beside it the weights as safetensors.

Nothing in them is executed: what a policy is made of is looked up by name in the registry.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from servegym.baselines import registry
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.derived import PREFIX, LearnedPolicy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import ranked
from servegym.baselines.learned.routing import routed
from servegym.baselines.learned.scaling import scaled
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.fields import Layout
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.tiers import tiers_layout
from servegym.simulator.errors import PolicyError
from servegym.simulator.policies import Policy, from_json

VERSION = 1
SCHEMA = "artifact.schema.json"
HEURISTIC = "heuristic"
LAYOUT_OF = {"controller": "engine", "ranking": "queue", "routing": "routing", "scaling": "tiers"}
LAYOUTS: dict[str, Callable[[int], Layout]] = {
    "engine": lambda slots: engine_layout(),
    "queue": queue_layout,
    "routing": routing_layout,
    "tiers": tiers_layout,
}


def fields_digest(layout: Layout) -> str:
    """Of the names and bounds of an observation's numbers, in order, of whatever number of slots."""
    parts = [(layout.whole, layout.whole_fields), (layout.slot, layout.slot_fields)]
    named = [(part, field.name, float(field.low), float(field.high)) for part, fields in parts for field in fields]
    return hashlib.sha256(repr(named).encode()).hexdigest()[:16]


def save(policy: Policy, path: str | Path, provenance: Mapping[str, Any]) -> Path:
    """Write a policy to path, a .json file, and its weights beside it; returns the path.

    policy: one with a network, or a registered one with its settings (a heuristic). provenance: how it came about, as
    JSON (`trained_on`: what it was trained on, is what an evaluation looks at). Raises PolicyError for what cannot be
    written.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise PolicyError(f"{path}: a policy is saved to a .json file")
    document: dict[str, Any] = {
        "schema": VERSION, "kind": HEURISTIC, "base": None, "controls": [], "observation": None, "network": None,
        "weights": None, "provenance": dict(provenance),
    }  # fmt: skip
    weights = b""
    if isinstance(policy, LearnedPolicy):
        if policy.network is None or policy.base is None or policy.layout is None:
            raise PolicyError(f"{policy.name}: there is no network in it to be saved")
        if policy.settings:
            raise PolicyError(f"{policy.label}: save it without settings of its own; those of its base are kept")
        import safetensors.numpy

        name = path.with_suffix(".safetensors").name
        weights = safetensors.numpy.save(_tensors(policy.network))
        document |= {
            "kind": policy.way,
            "base": policy.base.to_json(),
            "controls": list(policy.controls),
            "observation": {
                "layout": LAYOUT_OF[policy.way],
                "slots": policy.layout.slots,
                "fields": fields_digest(policy.layout),
            },
            "network": policy.network.shape.to_json(),
            "weights": {"file": name, "sha256": hashlib.sha256(weights).hexdigest()},
        }
    else:
        document["base"] = policy.to_json()
    try:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{path}: provenance is not JSON: {error}") from None
    _check_document(document, str(path))
    if weights:
        _write(path.with_suffix(".safetensors"), weights)
    _write(path, text.encode())
    return path


def load(path: str | Path, name: str = "") -> Policy:
    """The policy in a file that `save` wrote; one with a network is named learned:STEM if nothing else is said.

    Raises PolicyError for whatever is not as it was written, or not known to this version.
    """
    path = Path(path)
    document = read_document(path)
    where, kind = str(path), document["kind"]
    registry.load()  # the base is one of those
    try:
        base = from_json(document["base"])
    except PolicyError as error:
        raise PolicyError(f"{where}: base: {error}") from None
    parts = ("observation", "network", "weights")
    if wrong := [part for part in parts if (document[part] is None) != (kind == HEURISTIC)]:
        there = "should not be there" if kind == HEURISTIC else "is missing"
        raise PolicyError(f"{where}: {wrong[0]} of a {kind} {there}")
    if kind == HEURISTIC:
        return base
    _check_observation(kind, document["observation"], where)
    try:
        network = _network(Shape.from_json(document["network"]), path.parent / document["weights"]["file"], document)
        return _policy(kind, base, network, document, name or f"{PREFIX}{path.stem}")
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from None


def read_document(path: Path) -> dict[str, Any]:
    """The JSON document, checked by itself: what it names may not exist. Raises PolicyError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}; it should be the .json file of a policy") from None
    except ValueError as error:
        raise PolicyError(f"{path}: not a JSON document ({error}); it may have been cut off") from None
    if isinstance(document, dict) and document.get("schema", VERSION) != VERSION:
        raise PolicyError(f"{path}: written in format {document['schema']!r}; this version reads {VERSION}")
    _check_document(document, str(path))
    return document


def _check_document(document: Any, where: str) -> None:
    import jsonschema

    schema = json.loads(importlib.resources.files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8"))
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    if error is not None:
        at = ".".join(str(part) for part in error.absolute_path)
        raise PolicyError(f"{where}: {at + ': ' if at else ''}{error.message} (see {SCHEMA})")


def _check_observation(kind: str, observation: Mapping[str, Any], where: str) -> None:
    layout = observation["layout"]
    if layout != LAYOUT_OF[kind]:
        raise PolicyError(f"{where}: a {kind} that sees {layout}; it should see {LAYOUT_OF[kind]}")
    digest = fields_digest(LAYOUTS[layout](observation["slots"]))
    if observation["fields"] != digest:
        raise PolicyError(
            f"{where}: it was made for other {layout} observations ({observation['fields']}; this version has {digest})"
        )


def _network(shape: Shape, path: Path, document: Mapping[str, Any]) -> Network:
    try:
        import safetensors.numpy
    except ImportError:
        raise PolicyError("its weights are read with the package safetensors: pip install safetensors") from None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"weights: {path.name}: {error.strerror or error}") from None
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:
        raise PolicyError(
            f"weights: {path.name} is not a file of safetensors ({error}); it may have been cut off"
        ) from None
    wanted = _tensors(Network.zeros(shape))
    for key in sorted(wanted.keys() | tensors.keys()):
        of_file, of_network = (str(some[key].shape) if key in some else "nothing" for some in (tensors, wanted))
        if of_file != of_network:
            raise PolicyError(f"weights: {path.name}: {key} has shape {of_file}; the network has {of_network}")
    network = Network.from_layers(
        shape, [(tensors[f"layer{i}.weight"], tensors[f"layer{i}.bias"]) for i in range(len(shape.layers))]
    )
    if hashlib.sha256(data).hexdigest() != document["weights"]["sha256"]:
        raise PolicyError(f"weights: {path.name} is not the file that was written with it (its sha256 is another)")
    return network


def _tensors(network: Network) -> dict[str, np.ndarray]:
    parts: dict[str, np.ndarray] = {}
    for i, (weight, bias) in enumerate(network.layers):
        parts |= {f"layer{i}.weight": np.ascontiguousarray(weight), f"layer{i}.bias": np.ascontiguousarray(bias)}
    return parts


def _policy(kind: str, base: Policy, network: Network, document: Mapping[str, Any], name: str) -> Policy:
    slots, controls = document["observation"]["slots"], tuple(document["controls"])
    if kind == "controller":
        return controlled(base, controls, network, name)
    if controls:
        raise PolicyError(f"controls: a {kind} has none; it should be []")
    return {"ranking": ranked, "routing": routed, "scaling": scaled}[kind](base, network, slots, name)


def _write(path: Path, data: bytes) -> None:
    """All of it or, if that fails, what was there before."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise PolicyError(f"{path}: cannot be written: {error.strerror or error}") from None

"""Artifacts as files: a JSON document (artifact.schema.json), and the weights of networks as safetensors beside it.

Nothing in the files is executed: policies are looked up by name in the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.baselines.artifact.artifact import Artifact, ArtifactError
from servegym.baselines.artifact.document import VERSION, check_document, read_document
from servegym.baselines.artifact.entries import entry_of, policy_of
from servegym.baselines.artifact.weights import SUFFIX
from servegym.baselines.learned.derived import PREFIX
from servegym.errors import PolicyError
from servegym.replacing import replacing
from servegym.simulator.policies.policy import Policy


def save_artifact(artifact: Artifact, path: str | Path) -> Path:
    """Write an artifact to a .json file and its weights beside it, and return the path.

    Weights go to STEM.safetensors, or STEM.ROLE.safetensors if several policies have weights. Each file is written
    atomically. Raises ArtifactError if a file cannot be written, or a value is not JSON.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ArtifactError(f"{path}: a policy is saved to a .json file")
    names = _weights_names(path.stem, artifact.policies)
    entries, files = {}, {}
    for role, policy in artifact.policies.items():
        entries[role], data = entry_of(policy, names[role])
        if data:
            files[names[role]] = data
    document: dict[str, Any] = {
        "schema": VERSION,
        "policies": entries,
        "estimator": artifact.estimator,
        "workload": artifact.workload,
        "provenance": dict(artifact.provenance),
    }
    try:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: provenance, estimator or workload is not JSON: {error}") from None
    check_document(json.loads(text), str(path))
    for name, data in files.items():
        _write(path.with_name(name), data)
    _write(path, text.encode())
    return path


def load_artifact(path: str | Path, name: str = "") -> Artifact:
    """Return the artifact in a file. name: of a policy with a network; by default learned:STEM.

    Raises ArtifactError for weights that were changed since they were saved, and for names that this version does not
    know.
    """
    path = Path(path)
    document = read_document(path)
    policies = {}
    for role, entry in document["policies"].items():
        try:
            policies[role] = policy_of(entry, path.parent, name or f"{PREFIX}{path.stem}")
        except PolicyError as error:
            raise ArtifactError(f"{path}: {role}: {error}") from None
    try:
        return Artifact(policies, document["estimator"], document["workload"], document["provenance"])
    except PolicyError as error:
        raise ArtifactError(f"{path}: {error}") from None


def save_policy(policy: Policy, path: str | Path, provenance: Mapping[str, Any]) -> Path:
    """Write one policy as an artifact, and return the path. Raises ArtifactError as `save_artifact`.

    policy: one with a network, or a registered one with its settings. provenance: how it was made, as JSON (an
    evaluation reads `trained_on`, its training data).
    """
    return save_artifact(Artifact({policy.kind: policy}, provenance=provenance), path)


def load_policy(path: str | Path, name: str = "") -> Policy:
    """Return the policy of an artifact that has exactly one. Raises ArtifactError as `load_artifact`."""
    artifact = load_artifact(path, name)
    if len(artifact.policies) > 1:
        raise ArtifactError(f"{path}: it has {len(artifact.policies)} policies; it should have one")
    return next(iter(artifact.policies.values()))


def _weights_names(stem: str, policies: Mapping[str, Policy]) -> dict[str, str]:
    """Return the name of each policy's weights file, by role."""
    several = sum(len(policy.weights) > 0 for policy in policies.values()) > 1
    return {role: f"{stem}.{role}{SUFFIX}" if several else f"{stem}{SUFFIX}" for role in policies}


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises ArtifactError, and keeps the old file, if that fails."""
    try:
        with replacing(path) as draft:
            draft.write_bytes(data)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from None

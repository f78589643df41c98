"""One policy as a file: an artifact with that policy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.baselines.artifact.artifact import Artifact, ArtifactError
from servegym.baselines.artifact.files import load_artifact, save_artifact
from servegym.simulator.policies.policy import Policy


def save(policy: Policy, path: str | Path, provenance: Mapping[str, Any]) -> Path:
    """Write a policy to a .json file and its weights beside it, and return the path.

    policy: one with a network, or a registered one with its settings (a heuristic). provenance: how it was made, as
    JSON (an evaluation reads `trained_on`, its training data). Raises ArtifactError if it cannot be written.
    """
    return save_artifact(Artifact({policy.kind: policy}, provenance=provenance), path)


def load(path: str | Path, name: str = "") -> Policy:
    """Return the policy of a file that has exactly one. name: of a policy with a network; by default learned:STEM.

    Raises ArtifactError for weights that were changed since they were saved, and for names that this version does not
    know.
    """
    artifact = load_artifact(path, name)
    if len(artifact.policies) > 1:
        raise ArtifactError(f"{path}: it has {len(artifact.policies)} policies; it should have one")
    return next(iter(artifact.policies.values()))

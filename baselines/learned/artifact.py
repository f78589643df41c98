"""One policy as a file: an artifact with that policy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.baselines.artifact.artifact import Artifact, ArtifactError
from servegym.baselines.artifact.files import load_artifact, save_artifact
from servegym.simulator.policies import Policy


def save(policy: Policy, path: str | Path, provenance: Mapping[str, Any]) -> Path:
    """Write a policy to path, a .json file, and its weights beside it; returns the path.

    policy: one with a network, or a registered one with its settings (a heuristic). provenance: how it came about, as
    JSON (`trained_on`: what it was trained on, is what an evaluation looks at). Raises ArtifactError for what cannot be
    written.
    """
    return save_artifact(Artifact({policy.kind: policy}, provenance=provenance), path)


def load(path: str | Path, name: str = "") -> Policy:
    """The policy in a file that has one; one with a network is named learned:STEM if nothing else is said.

    Raises ArtifactError for whatever is not as it was written, or not known to this version.
    """
    artifact = load_artifact(path, name)
    if len(artifact.policies) > 1:
        raise ArtifactError(f"{path}: it has {len(artifact.policies)} policies; one was looked for")
    return next(iter(artifact.policies.values()))

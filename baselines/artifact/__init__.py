"""Policies as files: what they are, what they assume, how they came about."""

from servegym.baselines.artifact.artifact import KINDS, Artifact, ArtifactError
from servegym.baselines.artifact.files import load_artifact, save_artifact

__all__ = ["KINDS", "Artifact", "ArtifactError", "load_artifact", "save_artifact"]

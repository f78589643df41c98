"""Artifacts: policies as files, with their assumptions and provenance."""

from servegym.baselines.artifact.artifact import KINDS, Artifact, ArtifactError
from servegym.baselines.artifact.files import load_artifact, save_artifact

__all__ = ["KINDS", "Artifact", "ArtifactError", "load_artifact", "save_artifact"]

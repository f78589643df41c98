"""Sets of policies that serve together: those of artifacts, and named ones to compare with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from servegym.baselines.artifact import KINDS, Artifact, load_artifact
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.registry import LEARNED, decode_scheduler, learned_path, router, scaler, scheduler
from servegym.errors import ExperimentError
from servegym.evaluation.candidates import Candidate
from servegym.simulator.policies.policy import Policy

SET = "set"  # the kind, when sets of policies are judged
JOINED = " + "
FIND = {"scheduler": scheduler, "decode_scheduler": decode_scheduler, "router": router, "scaler": scaler}


def find_set(text: str, others: Mapping[str, str | None]) -> tuple[str, Candidate]:
    """The label of a set, and the set.

    text: "learned:PATH" of an artifact, whose label is the stem of its path; or "scheduler NAME:key=value + router
    NAME", each word in front being a key of `KINDS`. others: the policies of the kinds that are not in it. Raises
    PolicyError and ArtifactError for what there is not, ExperimentError for a text that is neither.
    """
    if text.startswith(LEARNED):
        path = learned_path(text)
        artifact = load_artifact(path)
        label, policies = path.stem, dict(artifact.policies)
    else:
        policies = {}
        for part in text.split(JOINED):
            role, _, name = part.partition(" ")
            if role not in KINDS or not name or role in policies:
                right = f"it should be one of {', '.join(KINDS)}, once, a space and a policy"
                raise ExperimentError(f"policies {text!r}: {part!r}: {right}")
            policies[role] = FIND[role](name)
        label = JOINED.join(policy.label for policy in policies.values())
    for role, other in others.items():
        if role not in policies and other is not None:
            policies[role] = FIND[role](other)
    return label, Candidate(**policies)


def reference_sets(artifacts: Iterable[Artifact], named: Mapping[str, Sequence[str]]) -> list[str]:
    """References for artifacts, as texts for `find_set`: for each artifact its policies with their defaults. named: by
    role, policies in place of these; of several roles, every combination.
    """
    texts: dict[str, None] = {}
    for artifact in artifacts:
        choices = [
            [f"{role} {text}" for text in named.get(role) or [as_it_comes(policy)]]
            for role, policy in artifact.policies.items()
        ]
        texts |= dict.fromkeys(JOINED.join(parts) for parts in itertools.product(*choices))
    return list(texts)


def as_it_comes(policy: Policy) -> str:
    """The name of a policy, whose defaults then hold; of a learned policy the name of its base."""
    return policy.base.name if isinstance(policy, LearnedPolicy) and policy.base else policy.name


def artifact_text(text: str) -> str:
    """Convert the path of a file, or the name of a shipped policy, to the form that `learned_path` takes."""
    return text if text.startswith(LEARNED) else f"{LEARNED}{text}"


def artifact_of(text: str) -> tuple[Path, Artifact]:
    """The file of "learned:PATH" or "learned:NAME", and its contents. Raises PolicyError."""
    path = learned_path(text)
    return path, load_artifact(path)

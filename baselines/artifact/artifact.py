"""Artifacts: policies that serve together, their assumptions, and their provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Policy

# Role of a policy (in the order of labels) -> the kind of policy that can fill it.
KINDS = {"scheduler": "scheduler", "decode_scheduler": "scheduler", "router": "router", "scaler": "scaler"}


class ArtifactError(PolicyError):
    """An artifact is missing, damaged, or for another version. The message is one line."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


@dataclasses.dataclass(frozen=True)
class Artifact:
    """Policies that serve together.

    policies: at least one, by role (a key of `KINDS`).
    estimator: their estimator: "profile" (name), "form" and its packed "coefficients", "fit" (error, source and so on);
        None: to be given when they run.
    workload: what they were made for: "slo" (recipe); "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s" (None: none), the
        defaults of a request without its own; "weight_of_priority" ({"1": 2.0}), "first_token_weight" (relative to a
        later token's 1); "traces", "devices", "loads"; "engines", or "prefill" and "decode". None: unknown.
    provenance: how it was made, as JSON: study, panel, scores, seeds, versions; `trained_on`: its training data.

    Raises ArtifactError if there is no policy, or one is of the wrong kind for its role.
    """

    policies: Mapping[str, Policy]
    estimator: Mapping[str, Any] | None = None
    workload: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.policies:
            raise ArtifactError(f"an artifact has at least one policy: {', '.join(KINDS)}")
        for role, policy in self.policies.items():
            if role not in KINDS:
                raise ArtifactError(f"an artifact has no {role!r}; it has {', '.join(KINDS)}")
            if policy.kind != KINDS[role]:
                raise ArtifactError(f"{policy.label} is a {policy.kind}; the {role} should be a {KINDS[role]}")
        object.__setattr__(self, "policies", {role: self.policies[role] for role in KINDS if role in self.policies})

    @property
    def scheduler(self) -> Policy | None:
        """Scheduler of the engines; of the prefill engines in a disaggregated cluster."""
        return self.policies.get("scheduler")

    @property
    def decode_scheduler(self) -> Policy | None:
        return self.policies.get("decode_scheduler")

    @property
    def router(self) -> Policy | None:
        return self.policies.get("router")

    @property
    def scaler(self) -> Policy | None:
        return self.policies.get("scaler")

    @property
    def label(self) -> str:
        """The policies with their settings, as on the command line, joined by " + "."""
        return " + ".join(dict.fromkeys(policy.label for policy in self.policies.values()))

    def policy(self, kind: str) -> Policy:
        """Return the policy of a kind ("scheduler", "router", "scaler"). Raises ArtifactError if there is none."""
        for role, policy in self.policies.items():
            if KINDS[role] == kind:
                return policy
        has = " and ".join(f"a {role}" for role in self.policies)
        raise ArtifactError(f"it has {has}; it should have a {kind}")

"""Candidates of a comparison: policies that serve together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.errors import ExperimentError
from servegym.simulator.policies.policy import Policy

ROUTER = "round-robin"


class Candidate(NamedTuple):
    """Policies that serve together. decode_scheduler: that of the decode engines; None: the deployment's."""

    scheduler: Policy
    router: Policy
    scaler: Policy | None = None
    decode_scheduler: Policy | None = None

    @property
    def policies(self) -> list[Policy]:
        return [policy for policy in self if policy is not None]

    @property
    def roles(self) -> dict[str, Policy]:
        """The policies by role."""
        return {role: policy for role, policy in self._asdict().items() if policy is not None}


def find_candidates(
    schedulers: Iterable[str], routers: Iterable[str], scalers: Iterable[str] = ()
) -> dict[str, Candidate]:
    """Each scheduler under each router and each scaler ("name" or "name:key=value,..."), by label.

    A label is the scheduler's, followed by the router's or scaler's if there are several of these. Raises PolicyError
    for an unknown one, ExperimentError for two that are the same.
    """
    by_router = _different("routers", [find_router(text) for text in routers])
    by_scaler: dict[str, Policy | None] = {**_different("scalers", [find_scaler(text) for text in scalers])}
    candidates = {}
    for label, policy in find_schedulers(schedulers).items():
        for routing, router in by_router.items():
            for scaling, scaler in (by_scaler or {"": None}).items():
                more = [routing] * (len(by_router) > 1) + [scaling] * (len(by_scaler) > 1)
                candidates[" + ".join([label, *more])] = Candidate(policy, router, scaler)
    return candidates


def find_schedulers(texts: Iterable[str]) -> dict[str, Policy]:
    """Schedulers by their labels, in the order they were named. Raises as `find_candidates` does."""
    return _different("schedulers", [find_scheduler(text) for text in texts])


def _different(what: str, found: list[Policy]) -> dict[str, Policy]:
    policies = {policy.label: policy for policy in found}
    if len(policies) < len(found):
        raise ExperimentError(f"two of the {what} {', '.join(policy.label for policy in found)} are the same")
    return policies

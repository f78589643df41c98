"""Relations between a policy's parameters, such as one below another, which are declared beside the policy."""

from __future__ import annotations

from typing import NamedTuple

from servegym.policy import Policy


class Below(NamedTuple):
    """Parameter `lower` should be below parameter `upper`. source: where that comes from."""

    lower: str
    upper: str
    source: str


_relations: dict[tuple[str, str], list[Below]] = {}


def below(policy: Policy, lower: str, upper: str, source: str) -> Policy:
    """Declare a relation of a policy, and return the policy. Raises ValueError for an unknown parameter."""
    names = [parameter.name for parameter in policy.parameters]
    if lower not in names or upper not in names:
        raise ValueError(f"{policy.name}: {lower} below {upper}: it has {', '.join(names)}")
    declared = _relations.setdefault((policy.kind, policy.name), [])
    if Below(lower, upper, source) not in declared:
        declared.append(Below(lower, upper, source))
    return policy


def relations_of(policy: Policy) -> tuple[Below, ...]:
    """Return the relations declared for a policy of this kind and name."""
    return tuple(_relations.get((policy.kind, policy.name), ()))

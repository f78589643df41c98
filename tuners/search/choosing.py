"""Makes a `Space` from the names and ranges of the parameters to search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from servegym.baselines.relations import relations_of
from servegym.errors import SearchError
from servegym.simulator.policies.parameters import current_name
from servegym.simulator.policies.policy import Fact, Parameter, Policy
from servegym.tuners.search.space import LARGEST_SHARE, ROLES, Space, Variable

SEED = "seed"
Member = tuple[str, str]  # role, parameter


@dataclasses.dataclass(frozen=True)
class Range:
    """The range searched for a parameter, if narrower than the one that the policy declares.

    tie: ("role.parameter", ...) to search as one variable; parameters of equal name, unit, bounds and default are one
    anyway.
    """

    low: float | None = None
    high: float | None = None
    log: bool | None = None
    choices: tuple[str, ...] = ()
    tie: tuple[str, ...] = ()


def build_space(policies: Mapping[str, Policy], tune: Mapping[str, Range] | None = None) -> Space:
    """Make the space of a search.

    policies: by role. tune: ranges by name, "parameter" (of every policy that has it; the same quantity in several is
    one variable) or "role.parameter" (of this role only); empty: `searched_by_default` of each policy.

    Raises SearchError for a name that no policy has, one given twice, a range that is empty, without an end or beyond
    what the policy declares, and a seed.
    """
    unknown = [role for role in policies if role not in ROLES]
    if unknown:
        raise SearchError(f"unknown role {unknown[0]!r}; policies are {', '.join(ROLES)}")
    groups = _named(policies, tune) if tune else _by_default(policies)
    if not groups:
        raise SearchError(
            f"nothing to search: {', '.join(policy.name for policy in policies.values())} have no numbers to set"
        )
    members = [member for _, group, _ in groups for member in group]
    twice = [member for member in members if members.count(member) > 1]
    if twice:
        raise SearchError(f"{'.'.join(twice[0])} is named twice")
    variables = [_variable(policies, name, group, asked) for name, group, asked in groups]
    return Space(dict(policies), tuple(_related(policies, variables)))


def searched_by_default(policy: Policy) -> list[str]:
    """Names of the parameters to search by default: numbers with a paper or a system as their source; if a policy has
    none, all its numbers. Seeds, and parameters that are set, are left out."""
    numbers = [
        parameter
        for parameter in policy.parameters
        if not parameter.choices and parameter.name != SEED and parameter.name not in policy.settings
        and math.isfinite(parameter.low) and math.isfinite(parameter.high)
    ]  # fmt: skip
    published = [parameter for parameter in numbers if not parameter.source.startswith("ours")]
    return [parameter.name for parameter in published or numbers]


Group = tuple[str, list[Member], Range]  # name of the variable, parameters that it sets, given range


def _by_default(policies: Mapping[str, Policy]) -> list[Group]:
    members = [(role, name) for role, policy in policies.items() for name in searched_by_default(policy)]
    groups = []
    for name in dict.fromkeys(name for _, name in members):
        groups += _alike(policies, [member for member in members if member[1] == name], Range())
    return groups


def _named(policies: Mapping[str, Policy], tune: Mapping[str, Range]) -> list[Group]:
    groups: list[Group] = []
    for name, asked in tune.items():
        if asked.tie:
            groups.append((name, [_member(policies, text) for text in asked.tie], asked))
        elif "." in name:
            member = _member(policies, name)
            groups.append((".".join(member), [member], asked))
        else:
            name = _known_name(policies.values(), name)
            members = [(role, name) for role, policy in policies.items() if _parameter(policy, name) is not None]
            if not members:
                raise SearchError(f"no policy has a parameter {name}; {_what_there_is(policies)}")
            groups += _alike(policies, members, asked)
    return groups


def _alike(policies: Mapping[str, Policy], members: list[Member], asked: Range) -> list[Group]:
    """Group parameters of one name by quantity: equal unit, bounds and default."""
    found: dict[tuple[object, ...], list[Member]] = {}
    for role, name in members:
        p = _parameter(policies[role], name)
        assert p is not None
        default = policies[role].chosen()[name]
        found.setdefault((p.unit, p.low, p.high, p.log, p.integer, p.choices, default), []).append((role, name))
    groups = list(found.values())
    if len(groups) == 1 and len(groups[0]) > 1:
        return [(groups[0][0][1], groups[0], asked)]
    return [("+".join(".".join(member) for member in group), group, asked) for group in groups]


def _known_name(policies: Iterable[Policy], name: str) -> str:
    return current_name(name, {parameter.name for policy in policies for parameter in policy.parameters})


def _parameter(policy: Policy, name: str) -> Parameter | None:
    return next((parameter for parameter in policy.parameters if parameter.name == name), None)


def _member(policies: Mapping[str, Policy], text: str) -> Member:
    role, _, name = text.partition(".")
    if role not in policies:
        raise SearchError(f"{text}: there is no {role} in this search; there are {', '.join(policies)}")
    name = _known_name([policies[role]], name)
    if _parameter(policies[role], name) is None:
        raise SearchError(f"{text}: {_what_there_is({role: policies[role]})}")
    return role, name


def _what_there_is(policies: Mapping[str, Policy]) -> str:
    return "; ".join(
        f"{role} {policy.name} has {', '.join(parameter.name for parameter in policy.parameters) or 'none'}"
        for role, policy in policies.items()
    )


def _variable(policies: Mapping[str, Policy], name: str, members: list[Member], asked: Range) -> Variable:
    parameters = []
    for role, parameter_name in members:
        parameter = _parameter(policies[role], parameter_name)
        assert parameter is not None
        parameters.append(parameter)
    first = parameters[0]
    if SEED in (parameter.name for parameter in parameters):
        raise SearchError(f"{name}: a seed is not searched; the best one has no meaning for other requests")
    if len({(p.unit, p.integer, bool(p.choices)) for p in parameters}) > 1:
        raise SearchError(f"{name}: {', '.join('.'.join(member) for member in members)} are not the same quantity")
    if first.choices:
        return Variable(name, tuple(members), choices=_choices(name, parameters, asked), source=first.source)
    if asked.choices:
        raise SearchError(f"{name} is a number; give it low and high instead of choices")
    declared_low, declared_high = max(p.low for p in parameters), min(p.high for p in parameters)
    low, high = (
        declared if given is None else given
        for given, declared in ((asked.low, declared_low), (asked.high, declared_high))
    )
    log = asked.log if asked.log is not None else first.log and low > 0
    if not (math.isfinite(low) and math.isfinite(high)):
        raise SearchError(f"{name} has no end: {low:g} to {high:g}; give it a low and a high to search it")
    problems = [
        (not declared_low <= low < high <= declared_high,
         f"it should be a range within {declared_low:g} to {declared_high:g}"),
        (log and low <= 0, "on a logarithmic scale it should begin above 0"),
        (first.integer and (low != round(low) or high != round(high)), "it should begin and end with whole numbers"),
    ]  # fmt: skip
    for wrong, right in problems:
        if wrong:
            raise SearchError(f"{name}: {low:g} to {high:g}; {right}")
    return Variable(name, tuple(members), low, high, log, first.integer, unit=first.unit, source=first.source)


def _choices(name: str, parameters: list[Parameter], asked: Range) -> tuple[str, ...]:
    if asked.low is not None or asked.high is not None or asked.log is not None:
        raise SearchError(f"{name} is one of {', '.join(parameters[0].choices)}; it has no low and high")
    shared = [word for word in parameters[0].choices if all(word in parameter.choices for parameter in parameters)]
    unknown = [word for word in asked.choices if word not in shared]
    if unknown:
        raise SearchError(f"{name}: {unknown[0]!r}; it should be of {', '.join(shared)}")
    return asked.choices or tuple(shared)


def _related(policies: Mapping[str, Policy], variables: list[Variable]) -> list[Variable]:
    """Change the variables so that parameters with a related upper one stay below it."""
    of_member = {member: index for index, variable in enumerate(variables) for member in variable.members}
    changed = list(variables)
    for role, policy in policies.items():
        for lower, upper, source in relations_of(policy):
            at, above = of_member.get((role, lower)), of_member.get((role, upper))
            if at is not None and above is not None:
                changed[at] = _as_share(changed[at], role, lower, upper, source)
            elif at is not None:
                bound = LARGEST_SHARE * _number(policy, upper)
                changed[at] = _bounded(changed[at], changed[at].low, min(changed[at].high, bound), upper)
            elif above is not None:
                bound = _number(policy, lower) / LARGEST_SHARE
                changed[above] = _bounded(changed[above], max(changed[above].low, bound), changed[above].high, lower)
    return changed


def _as_share(variable: Variable, role: str, lower: str, upper: str, source: str) -> Variable:
    """Search `lower` as a share of its range below `upper`: every draw keeps the relation, and samplers that treat
    variables as independent see a box."""
    if len(variable.members) > 1:
        raise SearchError(f"{variable.name}: {lower} is to be below {upper} in {role}; it cannot be tied to others")
    return dataclasses.replace(
        variable, name=f"{role}.{lower}_of_{upper}", low=0.0, high=LARGEST_SHARE, log=False, share_of=upper,
        unit=f"share of {upper}", parameter_low=variable.low, parameter_high=variable.high,
        source=f"{variable.source}; {source}",
    )  # fmt: skip


def _number(policy: Policy, name: str) -> float:
    value = policy.chosen()[name]
    if isinstance(value, Fact | str):
        raise SearchError(f"{policy.name}: {name} bounds a searched parameter, so it should be set to a number")
    return float(value)


def _bounded(variable: Variable, low: float, high: float, by: str) -> Variable:
    if not low < high:
        raise SearchError(f"{variable.name}: {by} leaves nothing to search between {low:g} and {high:g}")
    return dataclasses.replace(variable, low=low, high=high)

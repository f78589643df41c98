"""Scaling: a network decides the tier of each engine, whether it is closed to new requests, and its role if that may
change."""

from __future__ import annotations

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import LAYERS, SIZES, SLOTS, forward
from servegym.baselines.learned.memory import split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.day import day_layout, observe_day
from servegym.baselines.observations.roles import observe_roles, roles_layout
from servegym.baselines.observations.tiers import observe_tiers, tiers_layout
from servegym.errors import PolicyError
from servegym.policy import POOL, ROLE_DECODE, ROLE_PREFILL, TIERS, Policy, kernel, scaler, specialised

NOW, DAY, ROLES = "tiers", "day", "roles"
LAYOUTS = {NOW: tiers_layout, DAY: day_layout, ROLES: roles_layout}  # what a learned scaler can see


def choices_of(tiers: int, roles: int = 1) -> int:
    """Return the number of choices for an engine: a tier or the common pool, open or closed; for each role.

    roles: roles that it may be given: 1, or 2 (prefill, decode).
    """
    return 2 * (tiers + 1) * roles


@kernel
def choice_of(move):
    """Return the index of a move's choice: the pool, then the tiers; for each, open, then closed."""
    return 2 * (move.tier - POOL) + (1 if move.closed != 0 else 0)


@kernel
def role_of(move):
    """Return the role that a move gives its engine: 0: prefill (or both); 1: decode."""
    return 1 if move.role == ROLE_DECODE else 0


@kernel
def is_last_of_role(moves, e):
    """Return whether no other engine is to have the role of engine e."""
    for other in range(moves.shape[0]):  # noqa: SIM110 (kernels have no generators)
        if other != e and moves[other].role == moves[e].role:
            return False
    return True


@kernel
def give_choice(moves, e, snapshot, choice, places, has_roles):
    """Write a choice for engine e, of `places` for each role. Without roles, if its role is fixed, or if it would leave
    none of that role, the role stays."""
    move, place = moves[e], choice % places
    move.tier, move.closed = POOL + place // 2, place % 2
    if has_roles and snapshot.role_fixed == 0 and not is_last_of_role(moves, e):
        move.role = ROLE_DECODE if choice // places == 1 else ROLE_PREFILL


@kernel
def best_choice(scores, tiers, chosen):
    """Return the choice with the highest score in a cluster with this many tiers; ties: `chosen`, then the first."""
    best = chosen
    for choice in range(min(scores.shape[0], 2 * (tiers + 1))):
        if scores[choice] > scores[best]:
            best = choice
    return best


@scaler
def base(context, moves):
    """Placeholder for the base scaler."""


PARAMETERS = 0  # placeholder: number of the base's parameters
WANTED = -1  # placeholder: the number of its state that is how many engines the base wants; -1: none
HAS_ROLES = False  # placeholder: whether the choices of an engine include its role


@kernel
def observe(context, moves, wanted, slots, observation):
    """Write the observation of layout `NOW`; a placeholder for the other `OBSERVERS`."""
    observe_tiers(context, moves, slots, observation)


OBSERVERS = {NOW: observe, DAY: observe_day, ROLES: observe_roles}


@scaler
def scaled_scaler(context, moves):
    """Replace the base's moves by the choices with the highest scores: a template.

    Its numbers: the base's parameters, the network. Memory: the network's room, the scores, the observation.
    """
    base(context, moves)
    known, parameters = context.known, context.parameters
    network, rest = split_network(parameters[PARAMETERS:])
    slots = int(network[SLOTS])
    choices = int(network[SIZES + int(network[LAYERS]) - 1])
    scores, seen = split(rest, slots * choices)
    observation = seen.view(np.float32)
    engines, tiers = min(slots, known.snapshots.shape[0]), known.tiers.shape[0] - 2
    places = choices // 2 if HAS_ROLES else choices  # for each role
    observe(context, moves, WANTED, slots, observation)
    forward(network, observation, engines, scores)
    for e in range(engines):
        chosen = choice_of(moves[e])
        if chosen >= places:
            continue
        mine = scores[e * choices : (e + 1) * choices]
        role = role_of(moves[e]) if HAS_ROLES else 0
        choice = role * places + best_choice(mine[role * places : (role + 1) * places], tiers, chosen)
        if HAS_ROLES and known.snapshots[e].role_fixed == 0:
            other = (1 - role) * places + best_choice(mine[(1 - role) * places : (2 - role) * places], tiers, chosen)
            choice = other if mine[other] > mine[choice] else choice
        if choice != role * places + chosen:
            give_choice(moves, e, known.snapshots[e], choice, places, HAS_ROLES)


def scaled(base: Policy, network: Network, slots: int | None = None, name: str = "", sees: str = NOW) -> LearnedPolicy:
    """Return the base scaler with engines moved by a shared network. sees: the observation, a key of `LAYOUTS`.

    Each engine has `choices_of(tiers)` outputs, for at most 8 tiers: the pool, then the tiers; for each, open, then
    closed. A network that sees roles has these twice: for an engine that prefills, then for one that decodes. The
    choice with the highest output is taken; choices that the cluster does not have are skipped, and the base's choice
    wins ties.
    slots: None: as many as the network has; the base decides for further engines. Raises PolicyError if base and
    network do not match.
    """
    check_base(base, "scaler")
    if all(parameter.name != "interval_s" for parameter in base.parameters):
        raise PolicyError(f"{base.name} has no parameter interval_s, so it is never asked; the base should have one")
    layout, outputs = LAYOUTS[sees](network.shape.slots if slots is None else slots), network.shape.outputs
    roles = roles_of(sees)
    if outputs % (2 * roles) or not choices_of(0, roles) <= outputs <= choices_of(TIERS, roles):
        right = f"{2 * roles} (tiers + 1), of 0 to {TIERS} tiers"
        raise PolicyError(f"a scaling: {outputs} outputs; there should be {right}")
    check_network(network, layout, outputs, f"a scaling on {base.name}", "shared")
    constants = {"PARAMETERS": len(base.parameters), "WANTED": wanted_of(base), "HAS_ROLES": sees == ROLES}
    function = specialised(scaled_scaler, base=base.function, observe=OBSERVERS[sees], **constants)
    memory = network.shape.room + network.shape.output_size + half(layout.size)
    return derived("scaling", base, name, function, network.numbers, memory, network=network, layout=layout)


def wanted_of(base: Policy) -> int:
    """Return the index of the number of its state that is how many engines a scaler wants (day.py); -1: none."""
    return base.state.engine.index("wanted") if "wanted" in base.state.engine else -1


def roles_of(sees: str) -> int:
    """Return how many roles a scaler with this observation may give an engine: 1 (its own) or 2."""
    return 2 if sees == ROLES else 1

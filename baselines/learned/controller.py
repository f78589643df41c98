"""Controllers: a network sets parameters of a base scheduler for each batch.

An action a in [-1, 1] moves a parameter from its default d (a = 0, exactly) to its upper bound (a = 1) or its lower
bound (a = -1): d + (high - d) a for a > 0 and d + (low - d) |a| for a < 0; on a logarithmic scale d (high / d)^a and
d (low / d)^|a|.
"""

from __future__ import annotations

import math

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import forward
from servegym.baselines.learned.memory import KEPT, ROUNDS, is_same_decision, split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.engine import engine_layout, observe_engine
from servegym.errors import PolicyError
from servegym.policy import Fact, Parameter, Policy, kernel, scheduler, specialised
from servegym.simulator.policies.parameters import current_name

INDEX, LOW, HIGH, SCALE = range(4)  # of a row of the table of controls
LOGARITHMIC, WHOLE_NUMBERS = 1, 2  # flags of SCALE
OBSERVED = engine_layout().size


@kernel
def set_parameters(defaults, table, action, out):
    """Write a base scheduler's parameters into `out`: the defaults, changed by an action.

    defaults: float64[parameters]. table: float64[controls, 4]: (index, low, high, scale). action: float64[controls].
    """
    for i in range(out.shape[0]):
        out[i] = defaults[i]
    for k in range(table.shape[0]):
        i, low, high, scale = int(table[k, INDEX]), table[k, LOW], table[k, HIGH], int(table[k, SCALE])
        a = min(max(action[k], -1.0), 1.0)
        default, bound = defaults[i], high if a > 0.0 else low
        if a == 0.0 or np.isnan(a):
            continue
        if scale & LOGARITHMIC:
            value = default * (bound / default) ** abs(a)
        else:
            value = default + (bound - default) * abs(a)
        if scale & WHOLE_NUMBERS:
            value = np.rint(value)
        out[i] = min(max(value, low), high)


@scheduler
def base(context, ranks, limits):
    """Placeholder for the base scheduler."""


PARAMETERS, CONTROLS = 0, 0  # placeholders: number of the base's parameters, and of those that are set


@scheduler
def controlled_scheduler(context, ranks, limits):
    """Set the base's parameters by the network, then call the base: a template.

    Its numbers: the base's parameters, the table of controls, the network. Memory: the network's room, the action, the
    last decision's key, the defaults, the observation. The base's parameters are set in place, where `victims` reads
    them too.
    """
    parameters, now_s, engine = context.parameters, context.now_s, context.engine
    controls, rest = split(parameters[PARAMETERS:], 4 * CONTROLS)
    network, rest = split_network(rest)
    action, rest = split(rest, CONTROLS)
    memory, rest = split(rest, KEPT)
    defaults, seen = split(rest, PARAMETERS)
    table, observation = controls.reshape((CONTROLS, 4)), seen.view(np.float32)
    if memory[ROUNDS] == 0.0:
        for i in range(PARAMETERS):
            defaults[i] = parameters[i]
    if not is_same_decision(memory, now_s, engine):
        observe_engine(context, ranks, observation)
        forward(network, observation, 0, action)
        set_parameters(defaults, table, action, parameters[:PARAMETERS])
    base(context, ranks, limits)


def can_be_set(parameter: Parameter, base: Policy) -> bool:
    """Return whether a controller can set the parameter: a number with a default between its bounds, or a fact."""
    default = base.chosen()[parameter.name]
    if parameter.choices or not (math.isfinite(parameter.low) and math.isfinite(parameter.high)):
        return False
    return isinstance(default, Fact) or parameter.low < float(default) < parameter.high


def default_controls(base: Policy) -> tuple[str, ...]:
    """Return the parameters that a controller sets by default.

    These are all quantities or, if there are none, integers on a logarithmic scale. Raises PolicyError if there are
    neither.
    """
    possible = [parameter for parameter in base.parameters if can_be_set(parameter, base)]
    quantities = [parameter.name for parameter in possible if not parameter.integer]
    counts = [parameter.name for parameter in possible if parameter.integer and parameter.log]
    if not quantities + counts:
        raise PolicyError(f"{base.name} has no parameter that a controller could set")
    return tuple(quantities or counts)


def control_table(base: Policy, controls: tuple[str, ...]) -> np.ndarray:
    """Return float64[controls, 4], the table of `set_parameters`. Raises PolicyError if a parameter cannot be set."""
    names = [parameter.name for parameter in base.parameters]
    rows, controls = [], tuple(current_name(name, names) for name in controls)
    for name in controls:
        if name not in names or not can_be_set(base.parameters[names.index(name)], base):
            possible = [parameter.name for parameter in base.parameters if can_be_set(parameter, base)]
            raise PolicyError(f"{base.name}: {name} cannot be controlled; it can: {', '.join(possible) or 'none'}")
        parameter = base.parameters[names.index(name)]
        scale = LOGARITHMIC * parameter.log + WHOLE_NUMBERS * parameter.integer
        rows.append([names.index(name), parameter.low, parameter.high, scale])
    if not rows or len(set(controls)) < len(rows):
        raise PolicyError(f"{base.name}: controls {', '.join(controls) or '(none)'}; name one or more, each once")
    return np.array(rows, "f8")


def controlled(base: Policy, controls: tuple[str, ...] | None, network: Network, name: str = "") -> LearnedPolicy:
    """Return the base scheduler with parameters that a dense network sets for each batch from `engine_layout()`.

    controls: names of the parameters, one for each output of the network; None: `default_controls`. With all weights 0
    it decides as the base does. Raises PolicyError if base, controls and network do not match.
    """
    check_base(base, "scheduler")
    controls = default_controls(base) if controls is None else tuple(controls)
    table, layout = control_table(base, controls), engine_layout()
    check_network(network, layout, len(controls), f"a controller of {', '.join(controls)}", "dense")
    parameters = len(base.parameters)
    function = specialised(controlled_scheduler, base=base.function, PARAMETERS=parameters, CONTROLS=len(controls))
    weights = np.concatenate([table.ravel(), network.numbers])
    memory = network.shape.room + len(controls) + KEPT + parameters + half(OBSERVED)
    return derived(
        "controller", base, name, function, weights, memory, network=network, layout=layout, controls=controls
    )

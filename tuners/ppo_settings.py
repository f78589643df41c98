"""Checks the hyperparameters of PPO and MaskablePPO, which the libraries take as they come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from servegym.errors import TrainingError
from servegym.tuners.config import TrainingConfig, from_plain

END = "learning_rate_end"  # what the learning rate falls to, in proportion to the budget used
OVER_TIME = ("horizon_s", "trace_s")  # discounting over time instead of steps (tuners/discounting.py)


class Allowed(NamedTuple):
    """Values of a hyperparameter. kind: as `from_plain` takes it. right: as errors say it."""

    kind: Any
    holds: Callable[[Any], bool]
    right: str


def _number(holds: Callable[[float], bool], right: str, optional: bool = False) -> Allowed:
    kind, words = (float | None, f"{right}, or null") if optional else (float, right)
    return Allowed(kind, lambda value: value is None or holds(value), words)


def _count(least: int) -> Allowed:
    return Allowed(int, lambda value: value >= least, f"a whole number, {least} or more")


ABOVE = _number(lambda value: 0 < value < math.inf, "a number above 0")
ABOVE_OR_NONE = _number(lambda value: 0 < value < math.inf, "a number above 0", optional=True)
NOT_NEGATIVE = _number(lambda value: 0 <= value < math.inf, "a number, 0 or more")
SHARE = _number(lambda value: 0 <= value <= 1, "a number from 0 to 1")
SECONDS = _number(lambda value: 0 < value < math.inf, "seconds, above 0")
FLAG = Allowed(bool, lambda value: True, "true or false")
ALLOWED: Mapping[str, Allowed] = {
    "batch_size": _count(2),  # normalised advantages of one decision would be nothing
    "clip_range": ABOVE,
    "clip_range_vf": ABOVE_OR_NONE,
    "ent_coef": NOT_NEGATIVE,
    "gae_lambda": SHARE,
    "gamma": SHARE,
    "horizon_s": SECONDS,
    "learning_rate": ABOVE,
    "learning_rate_end": _number(lambda value: 0 <= value < math.inf, "a number, 0 or more", optional=True),
    "max_grad_norm": ABOVE,
    "n_epochs": _count(1),
    "n_steps": _count(1),
    "normalize_advantage": FLAG,
    "stats_window_size": _count(1),
    "target_kl": ABOVE_OR_NONE,
    "trace_s": SECONDS,
    "vf_coef": NOT_NEGATIVE,
}


def checked(config: TrainingConfig) -> dict[str, Any]:
    """Return the hyperparameters with their types. Raises TrainingError for an unknown, missing or wrong one."""
    given = dict(config.hyperparameters)
    if unknown := sorted(set(given) - set(ALLOWED)):
        raise TrainingError(
            f"hyperparameters.{unknown[0]}: unknown to {config.algorithm}; it has {', '.join(sorted(ALLOWED))}"
        )
    lacking = [name for name in OVER_TIME if (name in given) != any(one in given for one in OVER_TIME)]
    if lacking:
        raise TrainingError(
            f"hyperparameters.{lacking[0]} is missing; discounting over time needs both {', '.join(OVER_TIME)}"
        )
    return {name: _checked(f"hyperparameters.{name}", ALLOWED[name], value) for name, value in given.items()}


def _checked(where: str, allowed: Allowed, given: Any) -> Any:
    try:
        value = from_plain(allowed.kind, given, where)
        if allowed.holds(value):
            return value
    except TrainingError:  # of another kind
        pass
    raise TrainingError(f"{where} is {given!r}; it should be {allowed.right}")

"""Policies: compiled functions with declared parameters, and the registry that finds them by name.

Search spaces, help texts, tables of documents and exports are read off a `Policy`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import PolicyError, unknown_name
from servegym.simulator.compilation.digests import PACKAGE, plain_function
from servegym.simulator.compilation.kernels import Compiled, has_types
from servegym.simulator.policies.declared import DECLARED_BY, declarations_read, state_uses
from servegym.simulator.policies.parameters import ByWord, Fact, Parameter, Parameters, Value, current_name
from servegym.simulator.policies.scratch import NO_SCRATCH, Scratch
from servegym.simulator.records.signatures import (
    router_signature,
    scaler_signature,
    scheduler_signature,
    victims,
    victims_signature,
)

__all__ = [
    "NO_WEIGHTS", "ByWord", "Fact", "Parameter", "Parameters", "Policy", "Scratch", "StateFields", "Value", "Weights",
    "from_json", "get_policy", "last_ranked_first", "policy_names", "register", "registered",
]  # fmt: skip

has_types("servegym.simulator.policies.reading")  # of declarations


@dataclasses.dataclass(frozen=True)
class StateFields:
    """What a policy remembers between decisions.

    request, engine, client: names of its numbers (float64, 0 at first) for each request, engine, and client at an
    engine. by_client, by_application: it reads running statistics. tasks: it makes preemptible batches. repeatable:
    although it has numbers, asking it once more at the same instant changes nothing.
    """

    request: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    by_client: bool = False
    by_application: bool = False
    tasks: bool = False
    repeatable: bool = False

    def has(self, table: str) -> bool:
        """Return whether the policy has a table of `signatures.State`."""
        return bool(getattr(self, {"requests": "request", "engines": "engine", "clients": "client"}.get(table, table)))


class Weights:
    """Learned numbers: `values`, float64, read-only. They are compared and hashed by their bytes.

    Raises PolicyError for a number that is not finite.
    """

    def __init__(self, values: Any = ()):
        self.values = np.array(values, dtype="f8").ravel()
        if not np.isfinite(self.values).all():
            at = int(np.flatnonzero(~np.isfinite(self.values))[0])
            raise PolicyError(f"weight {at} is {self.values[at]}; weights should be finite numbers")
        self.values.setflags(write=False)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.values.tobytes() == other.values.tobytes()

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    def __repr__(self) -> str:
        return f"<{len(self)} weights {self.sha256[:8]}>" if len(self) else "<no weights>"

    def __reduce__(self) -> Any:
        return Weights, (np.asarray(self.values),)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.values.tobytes()).hexdigest()


NO_WEIGHTS = Weights()
SIGNATURES = {"scheduler": scheduler_signature, "router": router_signature, "scaler": scaler_signature}  # by kind


@victims
def last_ranked_first(context, ranks, limits):
    """Evict first what would run last."""
    for position in range(context.queue.shape[0]):
        ranks[position].victim_tier = ranks[position].tier
        ranks[position].victim_key = ranks[position].key


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy and the settings of its parameters.

    kind: "scheduler", "router" or "scaler" (which has a parameter interval_s, the time between its decisions).
    function: its compiled function. victims: its compiled function that ranks requests for eviction.
    moves_engines: a router that moves engines out of the common pool (which takes their requests back).
    urgent_tier: requests ranked in this tier or a lower one are urgent; None: it has no urgent requests.
    estimates: a scheduler that calls `estimator.exec_s` for the whole queue and does not change exec_s afterwards.
    rank_then_filter: the two parts of a scheduler's function: the first ranks, the second leaves requests out of the
    batch by rank. Called one after the other they equal `function`; ranks can be changed in between.
    settings: the parameters that differ from their defaults.
    weights: learned numbers, which the function gets after its parameters.
    memory: how many further numbers after those it may write, 0 at first; each engine has its own.
    scratch: memory within a decision.

    Raises PolicyError if a function uses a state table that is not declared, or reads other parameters or scratch
    memory than these.
    """

    name: str
    kind: str
    doc: str
    source: str
    function: Compiled
    victims: Compiled = last_ranked_first
    parameters: tuple[Parameter, ...] = ()
    state: StateFields = StateFields()
    urgent_tier: int | None = None
    moves_engines: bool = False
    estimates: bool = False
    rank_then_filter: tuple[Compiled, Compiled] | None = None
    settings: Mapping[str, Value | Fact] = dataclasses.field(default_factory=dict)
    weights: Weights = NO_WEIGHTS
    memory: int = 0
    scratch: Scratch = NO_SCRATCH

    def __post_init__(self) -> None:
        if self.kind not in SIGNATURES:
            raise PolicyError(f"policy {self.name} has kind {self.kind!r}; it should be one of {', '.join(SIGNATURES)}")
        self._check_function("function", self.function, self.kind, SIGNATURES[self.kind])
        self._check_function("victims", self.victims, "victims", victims_signature)
        if not self.function.__module__.startswith(PACKAGE):
            self.check_uses()

    def check_uses(self) -> None:
        """Raise PolicyError if its functions use what is not declared.

        It takes 10 ms, so policies of this package are checked only by `get_policy` and in a scenario.
        """
        schedules = self.kind == "scheduler"
        for function in (
            (self.function, self.victims, *(self.rank_then_filter or ())) if schedules else (self.function,)
        ):
            self._check_declarations(function)
            for table, where in state_uses(function, self.kind).items():
                if not self.state.has(table):
                    what = f"state.{table}" if schedules else "state"
                    raise PolicyError(
                        f"{self.kind} {self.name} uses {what} ({where}), which it has not declared; it should have "
                        f"state=StateFields({DECLARED_BY[table]})"
                    )

    def _check_function(self, field: str, function: Any, decorator: str, signature: Any) -> None:
        """Raise PolicyError if a function is not compiled with the signature of its role."""
        if isinstance(function, Compiled) and function.declared == signature:
            return
        code = getattr(plain_function(function), "__code__", None)
        where = f"{Path(code.co_filename).name}, line {code.co_firstlineno}: " if code else ""
        what = "decorated as something else" if isinstance(function, Compiled) else "not decorated"
        raise PolicyError(
            f"{self.kind} {self.name}: {where}its {field} {getattr(function, '__name__', repr(function))} is {what}; "
            f"it should be decorated with @{decorator} (of servegym.policy)"
        )

    def _check_declarations(self, function: Compiled) -> None:
        """Raise PolicyError if a function reads other parameters or scratch memory by name than the policy has."""
        for declared, where in declarations_read(function):
            if isinstance(declared, Scratch):
                same, reads, has = declared == self.scratch, f"{declared}", f"{self.scratch}"
            else:
                same = declared.layout == Parameters(*self.parameters[: len(declared)]).layout
                reads = f"the parameters {', '.join(parameter.name for parameter in declared)}"
                has = f"the parameters {', '.join(parameter.name for parameter in self.parameters) or '(none)'}"
            if not same:
                raise PolicyError(f"{self.kind} {self.name} reads {reads} ({where}), and is declared with {has}")

    def with_settings(self, /, **settings: Any) -> Policy:
        """Return this policy with some parameters set. Raises PolicyError for an unknown name or an invalid value."""
        known = {parameter.name: parameter for parameter in self.parameters}
        settings = {current_name(name, known): value for name, value in settings.items()}
        for name in settings:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise PolicyError(f"{self.name} has no parameter {name}; {has}")
        checked = {name: known[name].check(value, self.name) for name, value in settings.items()}
        return dataclasses.replace(self, settings={**self.settings, **checked})

    @property
    def label(self) -> str:
        """Name and settings as text: slide-batching:gamma=2,eta=0.03."""
        settings = ",".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                            for name, value in self.settings.items())  # fmt: skip
        return f"{self.name}:{settings}" if settings else self.name

    def default_of(self, parameter: Parameter) -> Value | Fact:
        """Return the default of a parameter, given the settings of the others."""
        default = parameter.default
        if not isinstance(default, ByWord):
            return default
        deciding = next(other for other in self.parameters if other.name == default.parameter)
        word = self.settings.get(deciding.name, self.default_of(deciding))
        return default.values[str(word)]

    def chosen(self) -> dict[str, Value | Fact]:
        """Return the value of each parameter: its setting, or its default."""
        return {p.name: self.settings.get(p.name, self.default_of(p)) for p in self.parameters}

    def values(self, fact: Callable[[str], float]) -> dict[str, Value]:
        """Return the value of each parameter in a scenario. fact: returns a fact by name (`Fact`)."""
        return {
            name: value.factor * fact(value.name) if isinstance(value, Fact) else value
            for name, value in self.chosen().items()
        }

    def numbers(self, fact: Callable[[str], float]) -> np.ndarray:
        """Return float64[parameters + weights + memory]: the numbers that the compiled function gets."""
        values = self.values(fact)
        numbers = np.array(
            [p.choices.index(values[p.name]) if p.choices else values[p.name] for p in self.parameters], dtype="f8"
        )
        if len(self.weights) + self.memory == 0:
            return numbers
        return np.concatenate([numbers, self.weights.values, np.zeros(self.memory)])

    def to_json(self) -> dict[str, Any]:
        """Return kind, name and settings as a document for `from_json`; weights only by their digest."""
        document: dict[str, Any] = {"kind": self.kind, "name": self.name, "settings": dict(self.settings)}
        return document | ({"weights_sha256": self.weights.sha256} if len(self.weights) else {})


_registry: dict[tuple[str, str], Policy] = {}


def register(policy: Policy) -> Policy:
    """Register a policy by its kind and name. Raises PolicyError if another policy has them."""
    key = (policy.kind, policy.name)
    if key in _registry and _registry[key].function.py_func is not policy.function.py_func:
        raise PolicyError(f"there is already a {policy.kind} named {policy.name}")
    _registry[key] = policy
    return policy


def registered() -> dict[tuple[str, str], Policy]:
    """Return the registered policies by kind and name."""
    return dict(_registry)


def policy_names(kind: str) -> list[str]:
    """Return the names of the registered policies of a kind, sorted."""
    return sorted(name for registered, name in _registry if registered == kind)


def get_policy(kind: str, text: str) -> Policy:
    """Return a registered policy from "name" or "name:key=value,key=value". Raises PolicyError."""
    name, _, settings = text.partition(":")
    policy = _registry.get((kind, name))
    if policy is None:
        raise PolicyError(unknown_name(kind, name, policy_names(kind)))
    pairs = {}
    for pair in filter(None, settings.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise PolicyError(f"{kind} {text!r}: {pair!r} should be key=value")
        pairs[key.strip()] = value.strip()
    policy.check_uses()
    return policy.with_settings(**pairs)


def from_json(document: Mapping[str, Any]) -> Policy:
    """Return the policy of a document by `Policy.to_json`. Raises PolicyError."""
    missing = [key for key in ("kind", "name", "settings") if key not in document]
    if missing:
        raise PolicyError(f"a policy's JSON has kind, name and settings; missing: {', '.join(missing)}")
    if "weights_sha256" in document:
        raise PolicyError(f"{document['name']} has weights, which are not in this JSON; load the file it was saved to")
    return get_policy(document["kind"], document["name"]).with_settings(**document["settings"])

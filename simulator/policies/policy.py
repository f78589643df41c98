"""Policies: compiled functions with declared parameters, and the registry that finds them by name.

A `Policy` is data about a policy: search spaces, help texts, documentation tables and exports are read off it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import PolicyError, unknown_name
from servegym.simulator.compilation.kernels import PACKAGE, Compiled, plain_function
from servegym.simulator.policies import reading  # noqa: F401  (so that kernels can be compiled that read declarations)
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


@dataclasses.dataclass(frozen=True)
class StateFields:
    """What a policy remembers: names of the numbers it keeps between decisions (float64, 0 at first), for each request,
    engine, and client at an engine; whether it reads the running statistics by client and by application; whether
    it makes batches that can be suspended (`tasks`); and whether, where it keeps numbers, being asked once more at the
    same instant changes nothing (`repeatable`)."""

    request: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    by_client: bool = False
    by_application: bool = False
    tasks: bool = False
    repeatable: bool = False

    def has(self, table: str) -> bool:
        """Whether a table of `signatures.State` is there for the policy."""
        return bool(getattr(self, {"requests": "request", "engines": "engine", "clients": "client"}.get(table, table)))


class Weights:
    """Numbers that were learned: `values`, float64, read-only. Equal, and hashed, by their bytes.

    Raises PolicyError for one that is not finite.
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
    """What would run last gives up its memory first."""
    for position in range(context.queue.shape[0]):
        ranks[position].victim_tier = ranks[position].tier
        ranks[position].victim_key = ranks[position].key


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy and the settings of its parameters.

    kind: "scheduler", "router" or "scaler" (which has a parameter interval_s: it is asked so often).
    function: its compiled function. victims: which request gives up memory first.
    moves_engines: a router that moves engines out of the common pool (which takes their requests back).
    urgent_tier: requests ranked in this tier or before it are those it takes for urgent; None: it has no such notion.
    estimates: a scheduler that has the estimator write exec_s of the whole queue, and leaves it as it is.
    rank_then_filter: the two parts of a scheduler's function that first ranks, then leaves out what is not in the batch
    it has chosen by ranks. Called one after the other they do what it does; what changes ranks can do so in between.
    settings: the parameters that differ from their defaults.
    weights: numbers that were learned, which the function gets behind its parameters.
    memory: how many numbers behind those it may write; 0 at first, and its own at each engine.
    scratch: memory to work with in one decision.

    Raises PolicyError if a function uses a table of its state that is not declared, or reads parameters or scratch
    memory other than these.
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
        """See that its functions use only what is declared. Raises PolicyError.

        It takes 10 ms, so those of this package are checked when they are asked for by name or put into a scenario.
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
        """It should be compiled, with the signature of what it is for."""
        if isinstance(function, Compiled) and str(function.signature()) == str(signature):
            return
        code = getattr(plain_function(function), "__code__", None)
        where = f"{Path(code.co_filename).name}, line {code.co_firstlineno}: " if code else ""
        what = "decorated as something else" if isinstance(function, Compiled) else "not decorated"
        raise PolicyError(
            f"{self.kind} {self.name}: {where}its {field} {getattr(function, '__name__', repr(function))} is {what}; "
            f"it should be decorated with @{decorator} (of servegym.policy)"
        )

    def _check_declarations(self, function: Compiled) -> None:
        """What a function reads by name should be what the policy has: nothing else is where it looks."""
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
        """This policy with some parameters set. Raises PolicyError for an unknown name or a value out of range."""
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
        """Name and settings as one writes them: slide-batching:gamma=2,eta=0.03."""
        settings = ",".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                            for name, value in self.settings.items())  # fmt: skip
        return f"{self.name}:{settings}" if settings else self.name

    def default_of(self, parameter: Parameter) -> Value | Fact:
        """The default of a parameter beside the settings of the others."""
        default = parameter.default
        if not isinstance(default, ByWord):
            return default
        deciding = next(other for other in self.parameters if other.name == default.parameter)
        word = self.settings.get(deciding.name, self.default_of(deciding))
        return default.values[str(word)]

    def chosen(self) -> dict[str, Value | Fact]:
        """Every parameter's value: what it is set to, or its default."""
        return {p.name: self.settings.get(p.name, self.default_of(p)) for p in self.parameters}

    def values(self, fact: Callable[[str], float]) -> dict[str, Value]:
        """Every parameter's value in a scenario; `fact` gives the facts that defaults depend on."""
        return {
            name: value.factor * fact(value.name) if isinstance(value, Fact) else value
            for name, value in self.chosen().items()
        }

    def numbers(self, fact: Callable[[str], float]) -> np.ndarray:
        """float64[parameters + weights + memory]: the numbers that the compiled function is given."""
        values = self.values(fact)
        numbers = np.array(
            [p.choices.index(values[p.name]) if p.choices else values[p.name] for p in self.parameters], dtype="f8"
        )
        if len(self.weights) + self.memory == 0:
            return numbers
        return np.concatenate([numbers, self.weights.values, np.zeros(self.memory)])

    def to_json(self) -> dict[str, Any]:
        """What names this policy and its settings; `from_json` gives it back, unless it has weights."""
        document: dict[str, Any] = {"kind": self.kind, "name": self.name, "settings": dict(self.settings)}
        return document | ({"weights_sha256": self.weights.sha256} if len(self.weights) else {})


_registry: dict[tuple[str, str], Policy] = {}


def register(policy: Policy) -> Policy:
    """Make a policy known by its kind and name. Registering is all it takes to add one."""
    key = (policy.kind, policy.name)
    if key in _registry and _registry[key].function.py_func is not policy.function.py_func:
        raise PolicyError(f"there is already a {policy.kind} named {policy.name}")
    _registry[key] = policy
    return policy


def registered() -> dict[tuple[str, str], Policy]:
    """The registered policies by kind and name."""
    return dict(_registry)


def policy_names(kind: str) -> list[str]:
    """Names of the registered policies of a kind, sorted."""
    return sorted(name for registered, name in _registry if registered == kind)


def get_policy(kind: str, text: str) -> Policy:
    """A registered policy from "name" or "name:key=value,key=value". Raises PolicyError."""
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
    """The policy that `Policy.to_json` described."""
    missing = [key for key in ("kind", "name", "settings") if key not in document]
    if missing:
        raise PolicyError(f"a policy's JSON has kind, name and settings; missing: {', '.join(missing)}")
    if "weights_sha256" in document:
        raise PolicyError(f"{document['name']} has weights, which are not in this JSON; load the file it was saved to")
    return get_policy(document["kind"], document["name"]).with_settings(**document["settings"])

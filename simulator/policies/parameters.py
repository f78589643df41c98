"""Parameters of policies: declared with names, units and bounds, read in kernels as `p.gamma`.

P = Parameters(Parameter("gamma", 1.0, "aggressiveness", 0.1, 10), Parameter("budget", 512, "tokens", integer=True))

@scheduler
def mine(context, ranks, limits):
    p = P.read(context)
    limits.max_num_batched_tokens = p.budget
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import keyword
import math
import warnings
from collections.abc import Container, Mapping
from typing import Any

from servegym.errors import PolicyError

Value = float | int | str

# Earlier names of parameters and limits, which are accepted with a warning.
RENAMED = {
    "token_budget": "max_num_batched_tokens", "max_sequences": "max_num_seqs", "holder_budget": "max_num_seqs",
}  # fmt: skip


def current_name(name: str, known: Container[str]) -> str:
    """Return `name`, or today's name for an earlier one among `known`, with a DeprecationWarning."""
    if name in known or RENAMED.get(name) not in known:
        return name
    warnings.warn(f"{name} is now called {RENAMED[name]}", DeprecationWarning, stacklevel=3)
    return RENAMED[name]


@dataclasses.dataclass(frozen=True)
class Fact:
    """A default that depends on what is served: `factor` times a fact of the scenario.

    Facts: min_tpot_slo_s (smallest TPOT SLO of the workload); profiled_token_budget (most prefill tokens of a batch
    whose estimated time is within that SLO); step_tokens (batch time jumps where a batch exceeds a multiple of it).
    """

    name: str
    factor: float = 1.0

    def __str__(self) -> str:
        return self.name if self.factor == 1 else f"{self.factor:g} * {self.name}"


@dataclasses.dataclass(frozen=True)
class ByWord:
    """A default that depends on another parameter with choices: `values` by the choice of `parameter`."""

    parameter: str
    values: Mapping[str, Value | Fact]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a policy: a number, or one of a few words.

    low, high: inclusive bounds, also those of a search; log: search on a logarithmic scale.
    choices: words instead of a number; the kernel gets the index of the word.
    source: where the default comes from (paper, equation, code), or "ours".

    Raises PolicyError for bounds that no number is within, and for a default that the parameter cannot have.
    """

    name: str
    default: Value | Fact | ByWord
    doc: str
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    log: bool = False
    integer: bool = False
    choices: tuple[str, ...] = ()
    source: str = "ours"

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise PolicyError(
                f"parameter {self.name}: bounds from {self.low:.10g} to {self.high:.10g}; low should be at most high"
            )
        for default in self.defaults:
            if not isinstance(default, Fact):
                self.check(default, "default of a parameter")

    @property
    def defaults(self) -> tuple[Value | Fact, ...]:
        """The values that the default can have."""
        return tuple(self.default.values.values()) if isinstance(self.default, ByWord) else (self.default,)

    def check(self, value: Any, policy: str) -> Value:
        """Return `value` converted to this parameter's type. Raises PolicyError if it is not valid."""
        where = f"{policy}: {self.name}={value}"
        if self.choices:
            if value not in self.choices:
                raise PolicyError(f"{where}: should be one of {', '.join(self.choices)}")
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise PolicyError(f"{where}: should be a number") from None
        if not self.low <= number <= self.high:
            bounded = not (math.isinf(self.low) and math.isinf(self.high))
            right = f"{self.low:.10g} to {self.high:.10g} {self.unit}".rstrip() if bounded else "a number"
            raise PolicyError(f"{where}: should be {right}")
        if self.integer and number != math.floor(number):
            raise PolicyError(f"{where}: should be a whole number")
        return int(number) if self.integer else number

    @property
    def is_whole(self) -> bool:
        """Whether kernels read it as an int64: an integer, or the index of a choice."""
        return self.integer or bool(self.choices)

    @property
    def attribute(self) -> str:
        """Its name in kernels: `lambda` is `p.lambda_` there."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name


@functools.cache
def row_class(title: str, names: tuple[str, ...]) -> Any:
    """Return the NamedTuple class that `read` of a declaration returns."""
    return collections.namedtuple(title, names)


class Parameters(tuple[Parameter, ...]):
    """The parameters of a policy, in the order of the numbers that its function gets.

    `read(context)` returns them by name, in kernels and in Python: float64, or int64 for integers and the index of a
    choice. A kernel loads only those that it uses. Raises PolicyError for a name that is no Python name, or a
    duplicate.
    """

    def __new__(cls, *parameters: Parameter) -> Parameters:
        self = super().__new__(cls, parameters)
        for name in self.names:
            if not name.isidentifier() or name.startswith("_"):
                raise PolicyError(
                    f"a parameter is named {name!r}; kernels read it as p.NAME, it should be a Python name"
                )
            if self.names.count(name) > 1:
                raise PolicyError(f"two parameters are named {name}; names should be unique")
        return self

    def __getnewargs__(self) -> tuple[Parameter, ...]:
        return tuple(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes of what `read` returns."""
        return tuple(parameter.attribute for parameter in self)

    @property
    def layout(self) -> tuple[tuple[str, bool], ...]:
        """What kernels are compiled for: the attribute of each parameter, and whether it is an integer."""
        return tuple((parameter.attribute, parameter.is_whole) for parameter in self)

    @property
    def kernel_text(self) -> str:
        """What compiled kernels depend on, for `source_digest`."""
        return str(self.layout)

    def read(self, context: Any) -> Any:
        """Return the values of the parameters in a decision, by name."""
        values = zip(self, context.parameters, strict=False)  # weights may follow
        return row_class("Parameters", self.names)(
            *(int(value) if parameter.is_whole else value for parameter, value in values)
        )

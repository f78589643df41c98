"""`servegym policies`: lists schedulers, routers and scalers, or the parameters of one."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.output import console_for, write_json
from servegym.cli.runners import load_policy_files
from servegym.errors import PolicyError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.simulator.policies.policy import Parameter, Policy, Value

EXAMPLES = """\
[bold]Examples[/bold]

servegym policies

servegym policies slide-batching

servegym policies least-laxity --load-policies least_laxity.py

servegym policies --json -
"""


def policies(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the parameters of this one.")] = None,
    load_policies: options.LoadPolicies = None,
    json: options.Json = None,
) -> None:
    """List the schedulers, routers and scalers, or the parameters of the one that is named.

    A parameter is set after the name, as in slide-batching:gamma=2,eta=1.
    """
    load_policy_files(load_policies, check=False)  # nothing is run
    from servegym.baselines.registry import LEARNED, registered, shipped

    found = registered()
    learned = [f"{LEARNED}{one}" for one in shipped()]
    console = console_for(json)
    if name is None:
        for kind in dict.fromkeys(policy.kind for policy in found):
            console.print(f"{kind.capitalize()}s", style="bold")
            show_texts(console, {one.name: one.doc for one in found if one.kind == kind})
        console.print("Learned ones that ship", style="bold")
        console.print("  " + ", ".join(learned))
        console.print("The parameters of one: servegym policies NAME")
    else:
        found = [one for one in found if one.name == name]
        if not found:
            raise PolicyError(unknown_name("policy", name, sorted({one.name for one in registered()})))
        for one in found:
            console.print(f"{one.kind.capitalize()} {name}", style="bold")
            show_texts(console, {"": f"{one.doc} Source: {one.source}."})
            show_texts(console, {parameter.name: parameter_text(parameter) for parameter in one.parameters})
    write_json({"policies": [as_json(one) for one in found], "learned": learned if name is None else []}, json)


def show_texts(console: Console, texts: Mapping[str, str]) -> None:
    """Print a paragraph for each name, which stands before it."""
    indent = 4 + max(map(len, texts), default=0)
    for name, text in texts.items():
        first = f"  {name}".ljust(indent if name else 2)
        console.print(textwrap.fill(text, console.width, initial_indent=first, subsequent_indent=" " * len(first)))


def parameter_text(parameter: Parameter) -> str:
    unit = f" {parameter.unit}" if parameter.unit else ""
    return f"{default_text(parameter)}{unit} ({range_text(parameter)}): {parameter.doc} [{parameter.source}]"


def as_json(policy: Policy) -> dict[str, Any]:
    rows = [
        {
            "name": one.name, "default": default_text(one), "range": range_text(one), "unit": one.unit,
            "meaning": one.doc, "source": one.source,
        }
        for one in policy.parameters
    ]  # fmt: skip
    return {"kind": policy.kind, "name": policy.name, "doc": policy.doc, "source": policy.source, "parameters": rows}


def default_text(parameter: Parameter, mark: str = "") -> str:
    """Write the default; if it depends on another parameter's word, that for each word. mark: goes around values."""
    from servegym.simulator.policies.parameters import ByWord, Fact

    def text(value: Value | Fact) -> str:
        return f"{mark}{value if isinstance(value, Fact) else number_text(value)}{mark}"

    value = parameter.default
    if isinstance(value, ByWord):
        return ", ".join(f"{value.parameter}={word}: {text(one)}" for word, one in value.values.items())
    return text(value)


def number_text(value: Value) -> str:
    """Write a number as one would type it: whole numbers in full, others short."""
    if isinstance(value, str):
        return value
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e7 else f"{value:g}"


def range_text(parameter: Parameter, mark: str = "") -> str:
    """Write the values that it takes; "log": a search goes through them on a logarithmic scale."""
    if parameter.choices:
        return ", ".join(f"{mark}{choice}{mark}" for choice in parameter.choices)
    low, high = (number_text(end) if math.isfinite(end) else "" for end in (parameter.low, parameter.high))
    ends = f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}" if high else "any"
    return f"{ends}, log" if parameter.log else ends

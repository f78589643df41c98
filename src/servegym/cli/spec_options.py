"""The options of a `ServingSpec`, made from its fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from servegym.errors import SpecError
from servegym.scenarios import checks, values
from servegym.scenarios.fields import CORRECTION, FLAG, INCIDENTS, POOLS, Option
from servegym.scenarios.spec import LEAVES, ServingSpec, overridden

FIRST, GAIN_GROUP = "Most used", "Demand"
# Fields of which some commands take several values. Elsewhere a second one is an error: it would replace the first.
SEVERAL = ("trace", "load", "rate_per_s", "clients", "device", "scheduler", "router", "scaler")
Words = dict[str, Any]  # fields of a spec, by name
Command = Callable[..., Any]
SPEC_FILE = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        metavar="NAME|FILE.yaml",
        help="What is served: a preset by name, or a file (docs/spec.md). Other options override it.",
        show_default=False,
        rich_help_panel=FIRST,
    ),
]


def spec_options(
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    many: Collection[str] = (),
    help_texts: Mapping[str, str] | None = None,
    shown: Mapping[str, str] | str | None = None,
) -> Callable[[Command], Command]:
    """Give a command the option `--spec` and one for each field; the given fields are its argument `words`.

    only, without: fields by name. many: fields whose option can be repeated. help_texts: replace the fields' own.
    shown: texts that the help shows as defaults, by field or one for all.
    """
    names = [name for name, (_, one) in LEAVES.items() if one.kind != POOLS and name not in without]
    names = sorted((name for name in names if not only or name in only), key=lambda name: not LEAVES[name][1].first)

    def decorate(function: Command) -> Command:
        def command(**arguments: Any) -> Any:
            file = arguments.pop("spec")
            given = {name: arguments.pop(name) for name in names}
            of_options = {
                name: _value(value) if name in many or LEAVES[name][1].kind == INCIDENTS else _only(name, value)
                for name, value in given.items()
                if value not in (None, [])
            }
            words: Words = {}
            if file is not None:
                from servegym.scenarios.documents import load_words

                words = load_words(file)
                _check_pools(file, words, of_options)
            if {"load", "rate_per_s"} <= of_options.keys():
                raise SpecError("--rate and --load are both given; give one of them")
            return function(words=overridden(words, of_options), **arguments)

        texts, defaults = help_texts or {}, shown or {}
        made = [
            _parameter(
                name, name in many, texts.get(name), defaults if isinstance(defaults, str) else defaults.get(name)
            )
            for name in names
        ]
        file = inspect.Parameter("spec", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SPEC_FILE)
        return with_parameters(command, function, [file, *made, *own_parameters(function, "words")])

    return decorate


def _check_pools(file: Path, words: Words, of_options: Words) -> None:
    """Raise SpecError for options that would drop the pools of a spec, or that none of its pools would heed."""
    pools = words.get("pools") or ()
    dropped = [name for name in ("engines", "prefill", "decode") if name in of_options]
    ignored = [name for name in ("device", "scheduler") if name in of_options and all(getattr(p, name) for p in pools)]
    if pools and (dropped or ignored):
        own = "numbers of engines" if dropped else f"{ignored[0]}s"
        raise SpecError(f"the pools of {file} have their own {own}; leave {flag_of((dropped or ignored)[0])} out")


def option_set(
    kind: type, made: str, without: Collection[str] = (), changed: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Give a command an option for each field of a dataclass; its argument `made` is the dataclass.

    without: fields that keep their defaults. changed: annotations that replace the fields' own.
    """
    hints = {**typing.get_type_hints(kind, include_extras=True), **changed}
    fields = [field for field in dataclasses.fields(kind) if field.name not in without]
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields
    ]

    def decorate(function: Command) -> Command:
        def command(**arguments: Any) -> Any:
            values = {field.name: arguments.pop(field.name) for field in fields}
            return function(**{made: kind(**values)}, **arguments)

        own = own_parameters(function, made)
        return with_parameters(command, function, [*shared, *own])

    return decorate


def own_parameters(function: Command, made: str) -> list[inspect.Parameter]:
    """Return the parameters of a command itself: all but `made`, which is made from added options."""
    hints = typing.get_type_hints(function, include_extras=True)
    own = (one for one in inspect.signature(function).parameters.values() if one.name != made)
    return [one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in own]


def with_parameters(command: Command, function: Command, parameters: list[inspect.Parameter]) -> Command:
    """Give a command the name and help of a function, and these parameters, for typer."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


@functools.cache  # the same in most of the dozen commands
def _parameter(name: str, many: bool, help_text: str | None, shown: str | None) -> inspect.Parameter:
    """Return the option of a field. help_text, shown: what replaces the field's own."""
    part, option = LEAVES[name]
    is_flag, repeats = option.kind in (FLAG, CORRECTION), many or option.kind == INCIDENTS or name in SEVERAL
    default = (option.shown or _default(name, is_flag)) if shown is None else shown
    made = typer.Option(
        flag_of(name),
        metavar=None if is_flag else option.metavar,
        help=option.help + (" Repeatable." if many else "") if help_text is None else help_text,
        show_default=default or False,
        rich_help_panel=FIRST if option.first else (part.capitalize() or GAIN_GROUP),
        parser=None if is_flag or option.kind == INCIDENTS else _parser(name, option),
    )
    kind: Any = bool | None if is_flag else list[str] | None if repeats else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, made]
    )  # fmt: skip


_defaults = functools.cache(ServingSpec)


def _default(name: str, is_flag: bool) -> str:
    default = values.plain(_defaults()[name])
    return "" if is_flag else f"{default:g}" if isinstance(default, float) else str(default)


def _parser(name: str, option: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = values.from_option(name, option, text)
            checks.check_value(name, option, value)
        except SpecError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return parse


def _value(value: Any) -> Any:
    """Return the value of an option; a repeated one has several."""
    if not isinstance(value, list):
        return value
    return tuple(one for item in value for one in (item if isinstance(item, tuple) else (item,)))


def _only(name: str, value: Any) -> Any:
    """Return the value of an option that is given once. Raises SpecError."""
    if not isinstance(value, list):
        return value
    if len(value) > 1:
        raise SpecError(f"{flag_of(name)} is given {len(value)} times; this command takes one")
    return value[0]


def flag_of(name: str) -> str:
    """Return the option of a field."""
    return f"--{LEAVES[name][1].name or name.replace('_', '-')}"

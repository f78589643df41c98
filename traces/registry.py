"""Registries of readers, families, arrival processes and SLO recipes.

An entry is looked up by name, with parameters if it has any: "gamma:cv=4".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from servegym.errors import WorkloadError, unknown_name

Part = TypeVar("Part")


class Registry(Generic[Part]):
    """Entries of one kind by name. kind: their name in error messages, such as "SLO recipe"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """Return a decorator that adds an entry under `name`. Raises ValueError for a name that is taken."""

        def add(part: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._parts[name] = part
            return part

        return add

    def names(self) -> list[str]:
        return sorted(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts[name] for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __getitem__(self, name: str) -> Part:
        if name not in self._parts:
            raise WorkloadError(unknown_name(self.kind, name, self.names()))
        return self._parts[name]

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """Return the parameters of an entry that is a function: its keyword-only arguments."""
        signature = inspect.signature(cast(Callable[..., Any], self[name]), eval_str=True)
        return {key: one for key, one in signature.parameters.items() if one.kind is one.KEYWORD_ONLY}

    def bound(self, text: str, **defaults: Any) -> Callable[..., Any]:
        """Return the function of `text` ("name" or "name:key=value,key=value") with its parameters bound.

        defaults: values of parameters that `text` does not set; names that the function does not have are ignored.
        Raises WorkloadError for an unknown name or parameter, and a wrong or missing value.
        """
        name, _, settings = text.partition(":")
        part, parameters = self[name], self.parameters(name)
        what = f"{self.kind} '{name}'"
        takes_any = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(cast(Any, part)).parameters.values())
        given = set[str]()
        values = {key: value for key, value in defaults.items() if key in parameters and value is not None}
        for setting in filter(None, settings.split(",")):
            key, equals, value = setting.partition("=")
            if not equals:
                raise WorkloadError(f"{what}: '{setting}' sets nothing; write {name}:key=value,key=value")
            if key in given:
                raise WorkloadError(f"{what}: {key} is set twice")
            given.add(key)
            if key in parameters:
                values[key] = _value(value, parameters[key], what)
            elif takes_any:
                values[key] = value
            else:
                raise WorkloadError(f"{what}: {unknown_name('parameter', key, sorted(parameters))}")
        missing = [key for key, one in parameters.items() if one.default is one.empty and key not in values]
        if missing:
            raise WorkloadError(f"{what} needs {', '.join(missing)}: write {name}:{missing[0]}=value")
        return functools.partial(cast(Callable[..., Any], part), **values)


def _value(text: str, parameter: inspect.Parameter, what: str) -> Any:
    """Convert `text` to the type of the parameter's annotation: text, a whole number, or a finite number."""
    types = getattr(parameter.annotation, "__args__", (parameter.annotation,))
    if str in types:
        return text
    try:
        number = int(text) if int in types else float(text)
        if abs(number) < float("inf"):
            return number
    except ValueError:
        pass
    right = "a whole number" if int in types else "a finite number"
    raise WorkloadError(f"{what}: {parameter.name} is '{text}'; it should be {right}")

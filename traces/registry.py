"""Named parts that add themselves: readers, arrival processes and SLO recipes each live in one of these."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from servegym.simulator.errors import WorkloadError

Part = TypeVar("Part")


class Registry(Generic[Part]):
    """Parts of one kind by name. `kind` is what an error calls them, such as "SLO recipe"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """A decorator that adds a part under `name`; a name is taken once."""

        def add(part: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._parts[name] = part
            return part

        return add

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts[name] for name in self.names())

    def __getitem__(self, name: str) -> Part:
        if name not in self._parts:
            raise WorkloadError(unknown_name(self.kind, name, self.names()))
        return self._parts[name]


def unknown_name(kind: str, name: str, names: list[str]) -> str:
    """The message for a name that is not among `names`, with the one that was probably meant."""
    close = difflib.get_close_matches(name, names, n=1)
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown {kind} '{name}'{meant}; there are: {', '.join(names)}"

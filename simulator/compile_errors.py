"""Why a function of a policy cannot be compiled, in one line: where, what is wrong there, and what there is instead.

Numba says it in pages, or, of a field that a record does not have, in a word without a place.
"""

from __future__ import annotations

import difflib
import dis
import re
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError
from servegym.simulator import signatures
from servegym.simulator import types as layout
from servegym.simulator.compilation import Compiled, reached_kernels
from servegym.simulator.declared import declarations_read
from servegym.simulator.scores import RequestEstimates

PREAMBLE = re.compile(r"Failed in .* pipeline \(step: .*\)")
UNKNOWN = re.compile(r"Unknown attribute '(\w+)' of type (\w+)")
PLACE = re.compile(r'File "([^"]+)", line (\d+)|at (\S+) \((\d+)\)')
NAMED = re.compile(r"name '(\w+)'")
MOST_NAMES = 20  # that are listed
LONGEST = 200  # characters of what Numba says
RECORDS = (layout.RANK, layout.LIMITS, layout.REQUEST, layout.ENGINE, layout.ENGINE_SNAPSHOT, layout.ROUTE, layout.MOVE,
           layout.TIER, layout.TASK, layout.GROUP, layout.BATCH)  # fmt: skip
TUPLES = {kind.__name__: kind for kind in vars(signatures).values() if hasattr(kind, "_fields")} | {
    RequestEstimates.__name__: RequestEstimates
}


def ensure_compiled(who: str, function: Compiled) -> None:
    """Compile a function, or read it from the cache. Raises PolicyError in one line if it cannot be compiled."""
    try:
        function.dispatcher  # noqa: B018
    except Exception as error:
        raise PolicyError(f"{who} cannot be compiled: {why(error, function)}") from None


def why(error: Exception, function: Compiled) -> str:
    """What compiling a function raised, and where."""
    text = "\n".join(line for line in str(error).splitlines() if not PREAMBLE.fullmatch(line))
    unknown = UNKNOWN.search(text)
    if isinstance(error, KeyError):  # of a record's fields
        name = str(error.args[0])
        return f"{_line_of(function, name)}: there is no field {name}{_instead(name, _fields())}"
    if unknown is not None:
        name, kind = unknown.groups()
        where = _place_in(text) or _line_of(function, name)
        return f"{where}: there is no {name} in {kind}{_instead(name, _names_of(kind, function))}"
    if isinstance(error, TypeError):
        return f"{_line_of(function, '')}: {error}"
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = NAMED.search(first)
    where = _place_in(text) or _line_of(function, named[1] if named else "")
    return f"{where}: {first if len(first) <= LONGEST else first[:LONGEST] + ' ...'}"


def _names_of(kind: str, function: Compiled) -> list[str]:
    """The fields of a NamedTuple that kernels are given, by the name of its class."""
    if kind in TUPLES:
        return list(TUPLES[kind]._fields)
    return [name for declared, _ in declarations_read(function) if type(declared).__name__ == kind
            for name in declared.names]  # fmt: skip


def _fields() -> list[str]:
    """The fields of all records that policies are given."""
    return sorted({name for record in RECORDS for name in record.names or ()})


def _instead(name: str, names: list[str]) -> str:
    if 0 < len(names) <= MOST_NAMES:
        return f"; there are {', '.join(dict.fromkeys(names))}"
    close = difflib.get_close_matches(name, names, 3)
    return f"; did you mean {' or '.join(close)}?" if close else "; see simulator/types.py"


def _place_in(text: str) -> str:
    """The first place that Numba names; "": none."""
    here = PLACE.search(text)
    return f"{Path(here[1] or here[3]).name}, line {here[2] or here[4]}" if here else ""


def _line_of(function: Compiled, name: str) -> str:
    """Where a function, or a kernel that it calls, names something; where it begins, if none does."""
    kernels: list[Any] = [function.written, *reached_kernels(function)]
    for kernel in kernels:
        code = kernel.__code__
        for instruction in dis.get_instructions(code):
            if instruction.argval == name and instruction.positions and instruction.positions.lineno:
                return f"{Path(code.co_filename).name}, line {instruction.positions.lineno}"
    code = function.written.__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"

"""Why a function of a policy cannot be compiled, in one line: where, what is wrong, and what would be right.

Numba's own message is pages long, or, for an unknown field of a record, a word without a place.
"""

from __future__ import annotations

import difflib
import dis
import itertools
import re
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError
from servegym.simulator.compilation.digests import PACKAGE, reached_kernels
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.policies.declared import declarations_read
from servegym.simulator.policies.parameters import RENAMED
from servegym.simulator.policies.scores import RequestEstimates
from servegym.simulator.records import signatures
from servegym.simulator.records import types as layout

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PREAMBLE = re.compile(r"Failed in .* pipeline \(step: .*\)")
NO_NUMBER_ENDS = "each path through it should end in return, and its loops should end"
NO_NUMBER = f"a number is missing: a function that is called here returns none; {NO_NUMBER_ENDS}"
# Numba's messages for common mistakes, and ours, in which {0} and {1} are the groups of the pattern.
USUAL = (
    (re.compile(r"Cannot cast none to (\w+)"),
     NO_NUMBER),
    (re.compile(r"(?:Cannot cast|No conversion from) (?:Literal\[str\]\((\w*)\)|unicode_type) to (?!none)"),
     "text ({0!r}) stands where a number should be; a policy decides by numbers"),
    (re.compile(r"No conversion from (.+?) to none for '\$\w*return_value"),
     "a value is returned ({0}); a policy returns nothing, and writes what it decides into its last arguments"),
    (re.compile(r"Only accept returning of array passed into the function as argument"),
     "a new array is made here (np.zeros, np.argsort and the like do); a kernel cannot make arrays: declare scratch "
     "memory (Scratch), and order requests by their ranks"),
    (re.compile(r"Untyped global name '(\w+)':?\s+Cannot determine Numba type of <class 'function'>"),
     "{0} is a plain function; it should be decorated with @kernel (of servegym.policy)"),
)  # fmt: skip
UNKNOWN = re.compile(r"Unknown attribute '(\w+)' of type (\w+)")
PLACE = re.compile(r'File "([^"]+)", line (\d+)|at (\S+) \((\d+)\)')
NAMED = re.compile(r"name '(\w+)'")
MOST_NAMES = 20  # most that an error lists
LONGEST = 200  # most characters of Numba's message
RECORDS = (layout.RANK, layout.LIMITS, layout.REQUEST, layout.ENGINE, layout.ENGINE_SNAPSHOT, layout.ROUTE, layout.MOVE,
           layout.TIER, layout.TASK, layout.GROUP, layout.BATCH)  # fmt: skip
# The record type of arguments, by signature and position.
RECORD_OF = {
    str(signatures.scheduler_signature): {2: layout.LIMITS}, str(signatures.router_signature): {2: layout.ROUTE},
}  # fmt: skip
TUPLES = {kind.__name__: kind for kind in vars(signatures).values() if hasattr(kind, "_fields")} | {
    RequestEstimates.__name__: RequestEstimates
}

LENGTH = "output_tokens"  # a field of what routers are told, and of requests one that no policy gets
HIDDEN = (
    "output lengths are hidden from policies; there are num_output_tokens (those so far), predicted_output_tokens (nan "
    "without --predictor) and mean_length (of finished requests, in servegym.policy)"
)


def ensure_compiled(name: str, function: Compiled) -> None:
    """Compile a function, or read it from the cache. Raises PolicyError in one line if it cannot be compiled."""
    try:
        function.entry  # noqa: B018
    except Exception as error:
        raise PolicyError(f"{name} cannot be compiled: {why(error, function)}") from None


def why(error: Exception, function: Compiled) -> str:
    """Return what is wrong and where, from what compiling a function raised."""
    lines = COLOURS.sub("", str(error)).splitlines()
    text = "\n".join(line for line in lines if not PREAMBLE.fullmatch(line))
    for pattern, words in USUAL:
        if usual := pattern.search(text):
            where = _place_in(text, function)
            if not where and words is NO_NUMBER:  # the caller is ours
                words = f"{function.written.__name__} returns no number; {NO_NUMBER_ENDS}"
            return f"{where or line_of(function, '')}: {words.format(*usual.groups())}"
    unknown = UNKNOWN.search(text)
    if isinstance(error, KeyError):  # of a record's fields
        name = str(error.args[0])
        if name == LENGTH:
            return f"{line_of(function, name)}: {HIDDEN}"
        names = _fields_at(function, name)
        return f"{line_of(function, name)}: there is no field {name}{_close_to(name, names) or _instead(name, names)}"
    if unknown is not None:
        name, kind = unknown.groups()
        where = _place_in(text, function) or line_of(function, name)
        return f"{where}: there is no {name} in {kind}{_instead(name, _names_of(kind, function))}"
    if isinstance(error, TypeError):
        return f"{line_of(function, '')}: {error}"
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    named = NAMED.search(first)
    where = _place_in(text, function) or line_of(function, named[1] if named else "")
    return f"{where}: {first if len(first) <= LONGEST else first[:LONGEST] + ' ...'}"


def _names_of(kind: str, function: Compiled) -> list[str]:
    """Return the fields of a NamedTuple of kernels, by the name of its class."""
    if kind in TUPLES:
        return list(TUPLES[kind]._fields)
    return [name for declared, _ in declarations_read(function) if type(declared).__name__ == kind
            for name in declared.names]  # fmt: skip


def _fields_at(function: Compiled, name: str) -> list[str]:
    """Return the fields of the record that a function reads `name` from, if it is its last argument.

    Otherwise return the fields of all records that policies get.
    """
    code = function.written.__code__
    arguments = code.co_varnames[: code.co_argcount]
    record_of = RECORD_OF.get(str(function.declared), {})
    for before, here in itertools.pairwise(dis.get_instructions(code)):
        if here.argval == name and before.argval in arguments and arguments.index(before.argval) in record_of:
            return list(record_of[arguments.index(before.argval)].names or ())
    return sorted({name for record in RECORDS for name in record.names or ()})


def _instead(name: str, names: list[str]) -> str:
    if 0 < len(names) <= MOST_NAMES:
        return f"; there are {', '.join(dict.fromkeys(names))}"
    return _close_to(name, names) or "; see simulator/records/types.py"


def _close_to(name: str, names: list[str]) -> str:
    """Return a hint at what was meant; "": none."""
    if name in layout.LIMITS_OF_VLLM:
        return f"; what vLLM calls {name} is {layout.LIMITS_OF_VLLM[name]} here, of limits"
    if RENAMED.get(name) in names:
        return f"; {name} is now called {RENAMED[name]}"
    close = difflib.get_close_matches(name, names, 3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _place_in(text: str, function: Compiled) -> str:
    """Return the first place in Numba's message that is in a file of the function or of its kernels; "": none.

    Of a function that is not ours, only places that are not in our files.
    """
    kernels: list[Any] = [function.written, *reached_kernels(function)]
    if not function.written.__module__.startswith(PACKAGE):
        kernels = [kernel for kernel in kernels if not kernel.__module__.startswith(PACKAGE)]
    files = {Path(kernel.__code__.co_filename).name for kernel in kernels}
    for here in PLACE.finditer(text):
        if (file := Path(here[1] or here[3]).name) in files:
            return f"{file}, line {here[2] or here[4]}"
    return ""


def line_of(function: Compiled, name: str) -> str:
    """Return where a function, or a kernel that it calls, uses a name; if none does, where the function begins."""
    kernels: list[Any] = [function.written, *reached_kernels(function)]
    for kernel in kernels:
        code = kernel.__code__
        for instruction in dis.get_instructions(code):
            if instruction.argval == name and instruction.positions and instruction.positions.lineno:
                return f"{Path(code.co_filename).name}, line {instruction.positions.lineno}"
    code = function.written.__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"

"""Converts values from documents, options and calls to values of a spec's fields, and back; errors are SpecErrors."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from servegym.errors import DeploymentError, SpecError, WorkloadError, unknown_name
from servegym.scenarios.fields import (
    COLUMNS,
    CORRECTION,
    FRONT_END,
    GAIN,
    INCIDENTS,
    LOAD,
    LOAD_PROFILE,
    NUMERIC,
    POOLS,
    PREDICTOR,
    SEVERAL,
    SPECULATION,
    WHOLE,
    WINDOW,
    Option,
)
from servegym.scenarios.ranges import Range

if TYPE_CHECKING:
    from servegym.simulator.fleet.incidents import Incident
    from servegym.simulator.policies.policy import Policy

Leaves = Mapping[str, tuple[str, Option]]
LOADS = {"light": 0.3, "medium": 0.7, "high": 1.0, "overload": 1.4}


@dataclasses.dataclass(frozen=True)
class Pool:
    """Equal engines. device: None: the fleet's. role: both, prefill or decode. scheduler: None: that of the policies.
    tier: of these engines at first, from 0; None: the common pool."""

    device: str | None = None
    engines: int = 1
    role: str = "both"
    scheduler: str | Policy | None = None
    tier: int | None = None

    def __post_init__(self) -> None:
        paths_as_text(self, "device")


def paths_as_text(part: Any, name: str) -> None:
    """Replace a path in a field of a frozen dataclass, or each of several, by its text."""
    value = getattr(part, name)
    if isinstance(value, tuple):
        object.__setattr__(part, name, tuple(map(_without_path, value)))
    else:
        object.__setattr__(part, name, _without_path(value))


def _without_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read(words: Mapping[str, Any], leaves: Leaves, parts: Mapping[str, type]) -> dict[str, Any]:
    """Convert a mapping to values of fields; fields may be in a mapping under the name of their part.

    Raises SpecError for anything that is not a mapping, an unknown field, and one given twice.
    """
    found: dict[str, Any] = {}
    for word, value in words.items():
        if word in parts:
            if not isinstance(value, Mapping):
                if isinstance(value, parts[word]):
                    value = dict(vars(value))
                else:
                    raise SpecError(f"{word} is {value!r}; it should be keys with values")
            if strange := [key for key in value if leaves.get(key, ("",))[0] != word]:
                known = [name for name, (part, _) in leaves.items() if part == word]
                raise SpecError(unknown_name(f"field of {word}", str(strange[0]), known))
            inner = dict(value)
        elif word in leaves:
            inner = {word: value}
        else:
            raise SpecError(unknown_name("field of a spec", str(word), [*parts, *leaves]))
        if twice := [name for name in inner if name in found]:
            raise SpecError(f"{twice[0]} is given twice, alone and under {leaves[twice[0]][0]}")
        found |= {name: value_of(name, leaves[name][1], given) for name, given in inner.items()}
    return found


def value_of(name: str, option: Option, given: Any) -> Any:
    """Convert a value of JSON or YAML, a text, or the value itself to a field's value. Raises SpecError."""
    if option.kind in OF_KIND:
        return OF_KIND[option.kind](given)
    if hasattr(given, "tolist"):  # of NumPy, of Pandas
        given = given.tolist()
    if option.kind in NUMERIC and isinstance(given, Mapping):
        if set(given) != {"low", "high"}:
            raise SpecError(f"{name} has {', '.join(map(str, given)) or 'nothing'}; a range has low and high")
        try:
            return Range(*(_number(option, given[end]) for end in ("low", "high")))
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from None
    if option.kind in SEVERAL and isinstance(given, list | tuple):
        several = tuple(_number(option, item) if option.kind in NUMERIC else item for item in given)
        return several[0] if len(several) == 1 else several
    return _number(option, given) if option.kind in NUMERIC else given


def from_option(name: str, option: Option, text: str) -> Any:
    """Convert a text of the command line to a field's value: as `value_of`; numbers also as LOW..HIGH and X,Y.

    Raises SpecError.
    """
    if option.kind in NUMERIC and ".." in text:
        low, _, high = text.partition("..")
        return value_of(name, option, {"low": low, "high": high})
    if option.kind in NUMERIC and "," in text:
        return value_of(name, option, text.split(","))
    return value_of(name, option, text)


def _number(option: Option, given: Any) -> Any:
    """Convert a text to a number, and the name of a load; other values are left to checks."""
    if not isinstance(given, str):
        return given.tolist() if hasattr(given, "tolist") else given  # a NumPy number
    if option.kind == LOAD:
        return parse_load(given)
    try:
        number = float(given)
    except ValueError:
        return given
    return int(number) if option.kind == WHOLE and math.isfinite(number) and number == int(number) else number


def is_several(kind: str, value: Any) -> bool:
    """Whether a field has several values."""
    if kind == LOAD_PROFILE:
        return len(profiles_of(value)) > 1
    return isinstance(value, Range) or (kind in SEVERAL and isinstance(value, tuple))


def fixed(name: str, value: Any) -> Any:
    """Return the value of a field with a single value. Raises SpecError for several."""
    if isinstance(value, Range) or (isinstance(value, tuple) and len(value) != 1):
        raise SpecError(f"{name} is {plain(value)}; here it should be one value, as nothing is drawn")
    return value[0] if isinstance(value, tuple) else value


def whole(name: str, value: Any) -> int | None:
    """Return the whole number of a field with a single value; None if it is None. Raises SpecError for several."""
    number = fixed(name, value)
    return None if number is None else int(number)


def profiles_of(value: Any) -> tuple[Any, ...]:
    """Return the load profiles of a field as a tuple, also for one."""
    one = isinstance(value, tuple) and value and isinstance(value[0], tuple) and not isinstance(value[0][0], tuple)
    return (value,) if one else tuple(value)


def plain(value: Any) -> Any:
    """Convert a value to JSON's types: policies to labels; infinite numbers of a part are left out."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if hasattr(value, "label"):
        return value.label
    if hasattr(value, "kv"):  # a profile
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {key: plain(entry) for key, entry in entries.items() if entry != math.inf}
    return "inf" if value == math.inf else value


def listed_json(value: Any) -> Any:
    """As `plain`, with a single value of a field that may have several in a list; a range stays a range."""
    made = plain(value)
    return made if isinstance(made, list | dict) else [made]


def _gain(given: Any) -> Any:
    if isinstance(given, Mapping):
        from servegym.simulator.policies.gains import Gain

        return _part("gain", Gain, given)
    return given


def _predictor(given: Any) -> Any:
    if isinstance(given, Mapping):
        from servegym.simulator.inputs.predictors import Predictor

        return _part("predictor", Predictor, given)
    return given


def _correction(given: Any) -> Any:
    if isinstance(given, Mapping):
        from servegym.simulator.features.disturbances import Correction

        return _part("correction", Correction, given)
    return bool(given) if given is None else given


def front_end_from(given: Any) -> Any:
    """Convert a text or a mapping to a front end. Raises SpecError."""
    from servegym.simulator.features.front_end import FrontEnd, front_end_of

    return _numbers_from("front_end", given, FrontEnd, front_end_of)


def speculation_from(given: Any) -> Any:
    """Convert a text or a mapping to Speculation; None: there is none. Raises SpecError."""
    from servegym.simulator.features.speculation import Speculation, speculation_of

    return _numbers_from("speculation", given, Speculation, speculation_of)


def _numbers_from(name: str, given: Any, kind: type, read: Callable[[Any], Any]) -> Any:
    if given is None or isinstance(given, kind):
        return given
    if not isinstance(given, str | Mapping):
        raise SpecError(f"{name} is {given!r}; it should be keys with values, or none")
    try:
        return read(given)
    except DeploymentError as error:
        raise SpecError(str(error)) from None


def _incidents(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return tuple(incident_of(item) if isinstance(item, Mapping) else item for item in given)
    return given


def incident_of(given: Any) -> Incident:
    """Convert "fail:ENGINE@SECONDS" (or return, drain), or a mapping, to an incident. Raises SpecError."""
    from servegym.simulator.fleet.incidents import Incident
    from servegym.simulator.records.types import INCIDENTS as KINDS

    if isinstance(given, Incident):
        return given
    if isinstance(given, Mapping):
        return _part("an incident", Incident, given)
    right = f"it should be KIND:ENGINE@SECONDS, such as fail:0@60, KIND one of {', '.join(KINDS)}"
    kind, _, rest = str(given).partition(":")
    engine, _, time_s = rest.partition("@")
    if kind not in KINDS or not engine.isdecimal():
        raise SpecError(f"an incident of {given!r}; {right}")
    try:
        return Incident(float(time_s), int(engine), kind)
    except (ValueError, DeploymentError):
        raise SpecError(f"an incident of {given!r}; {right}, SECONDS 0 or more") from None


def _load_profile(given: Any) -> Any:
    if not isinstance(given, str):
        return _as_tuples(given)
    try:
        parts = tuple((float(share), float(factor)) for share, factor in (part.split(":") for part in given.split(",")))
    except ValueError:
        raise SpecError(f"a load profile of {given!r}; it should be SHARE:FACTOR,SHARE:FACTOR,...") from None
    return parts


def _pools(given: Any) -> Any:
    if not isinstance(given, list | tuple):
        raise SpecError(f"pools is {given!r}; it should be a list")
    pools = tuple(pool if isinstance(pool, Pool) else _part("a pool", Pool, pool) for pool in given)
    for pool in pools:
        number = pool.engines
        if isinstance(number, bool) or not isinstance(number, int | float) or number < 1 or number % 1:
            raise SpecError(f"a pool has {pool.engines!r} engines; it should be a whole number, 1 or more")
    return pools


def _columns(given: Any) -> Any:
    if given is None:
        return None
    from servegym.traces.reading import pairs_of

    try:
        return pairs_of(given)
    except WorkloadError as error:
        raise SpecError(str(error)) from None


def _window(given: Any) -> Any:
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def is_number(value: Any, whole: bool) -> bool:
    """Return whether a value is a number but not nan; whole: one without a fraction, or infinite."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        return False
    return not whole or math.isinf(value) or float(value).is_integer()


def _part(name: str, kind: Callable[..., Any], document: Any) -> Any:
    """Make a dataclass from a mapping. Raises SpecError for an unknown key, and for what is no number but should be."""
    if not isinstance(document, Mapping):
        raise SpecError(f"{name} is {document!r}; it should be keys with values")
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if strange := [key for key in document if key not in types]:
        raise SpecError(unknown_name(f"key of {name}", str(strange[0]), types))
    for key, value in document.items():
        wanted, *optional = types[key].split(" | ")
        if wanted not in ("int", "float") or (optional and value is None):
            continue
        whole = wanted == "int"
        if not is_number(value, whole) or (whole and math.isinf(value)):
            raise SpecError(f"{name}: {key} is {value!r}; it should be a {'whole ' * whole}number")
    try:
        return kind(**document)
    except TypeError as error:
        raise SpecError(f"{name}: {str(error).partition(' ')[2]}") from None


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list | tuple) else value


OF_KIND: dict[str, Callable[[Any], Any]] = {
    GAIN: _gain, PREDICTOR: _predictor, CORRECTION: _correction, INCIDENTS: _incidents, LOAD_PROFILE: _load_profile,
    POOLS: _pools, WINDOW: _window, FRONT_END: front_end_from, SPECULATION: speculation_from,
    COLUMNS: _columns,
}  # fmt: skip


def parse_load(text: str) -> float:
    """Return a load from its name in `LOADS` or a number above 0. Raises SpecError."""
    try:
        load = LOADS[text] if text in LOADS else float(text)
    except ValueError:
        load = math.nan
    if not 0 < load < math.inf:
        names = ", ".join(f"{name} ({value:g})" for name, value in LOADS.items())
        raise SpecError(f"a load of {text!r}: it should be a number above 0, or one of {names}")
    return load


def load_title(load: float) -> str:
    """Format a load with its name: "0.7 (medium)"."""
    names = [name for name, value in LOADS.items() if value == load]
    return f"{load:.4g} ({names[0]})" if names else f"{load:.4g}"

"""Reading: names of columns and repairs, for a file whose columns differ from servegym's.

A `Reading` accompanies the name of a trace from a command's options, a spec or a call to the reader of the file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from servegym.errors import WorkloadError, unknown_name

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # units in a second
SHORT = {
    "arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "id": "request_id",
    "think": "think_s", "ttft": "ttft_s", "e2e": "e2e_s",
}  # fmt: skip
NONE = "none"  # in place of a column's name: the file has no such column
EXAMPLE = "arrival=timestamp,prompt=input_tokens,output=completion_tokens"
Columns = str | Mapping[str, str] | Iterable[tuple[str, str]]
_TIMES = {
    "timestamp", "datetime", "date", "arrival", "arrived", "arrives", "epoch", "ts", "created", "received", "submitted",
}  # fmt: skip
_ALONE = {"time", "t", "start", "start_time", "started_at", "sent_at", "request_time", "req_time", "time_stamp", "when"}
_UNIT = re.compile(r"_(s|ms|us|ns|sec|secs|seconds|milliseconds|utc)$")


@dataclasses.dataclass(frozen=True)
class Reading:
    """Options for reading a file.

    columns: pairs of servegym's name (or one of `SHORT`) and the file's; also as text like `EXAMPLE`, or a mapping. A
        dot reaches into nested fields: usage.prompt_tokens. `NONE` as the file's name: the file has no such column.
    time_unit: of numbers that are times, one of `UNITS`; they may count from any origin, and the first becomes 0. None:
        the format's own unit and origin.
    drop_empty: drop requests without prompt or output tokens. sort: sort rows by time.

    Raises WorkloadError for invalid values.
    """

    columns: Columns = ()
    time_unit: str | None = None
    drop_empty: bool = False
    sort: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", pairs_of(self.columns))
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise WorkloadError(f"a time unit of {self.time_unit!r}; it should be one of {', '.join(UNITS)}")

    @property
    def names(self) -> dict[str, str]:
        """servegym's name -> the file's; `NONE`: the file has no such column."""
        return dict(self.columns)  # type: ignore[arg-type]

    @property
    def renames(self) -> bool:
        """Whether any column of the file is named."""
        return any(column != NONE for column in self.names.values())

    @property
    def options(self) -> str:
        """The options that differ from the defaults, for error messages; empty if none does."""
        named = (("--columns", self.columns), ("--time-unit", self.time_unit), ("--drop-empty", self.drop_empty))
        return ", ".join(name for name, value in (*named, ("--sort", self.sort)) if value)

    def check_known(self, known: Iterable[str]) -> None:
        """Raise WorkloadError for a name that is not in `known`."""
        known = list(known)
        for name in self.names:
            if name not in known:
                names = [short for short, name in SHORT.items() if name in known] + known
                raise WorkloadError(f"--columns: {unknown_name('column', name, names)}")


def pairs_of(given: Columns) -> tuple[tuple[str, str], ...]:
    """Parse text, a mapping, or pairs to pairs of servegym's name and the file's. Raises WorkloadError."""
    right = f"it should be NAME=COLUMN,..., such as {EXAMPLE}"
    if isinstance(given, str):
        pairs = [tuple(part.strip() for part in pair.split("=", 1)) for pair in given.split(",")]
    else:
        try:
            pairs = [tuple(pair) for pair in (given.items() if isinstance(given, Mapping) else given)]
        except TypeError:
            raise WorkloadError(f"columns of {given!r}; {right}") from None
    found: dict[str, str] = {}
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise WorkloadError(f"columns: {'='.join(map(str, pair))!r} names no column; {right}")
        name = SHORT.get(pair[0], pair[0])
        if name in found:
            raise WorkloadError(f"columns: {name} is given twice; give one column for it")
        found[name] = pair[1]
    return tuple(found.items())


def looks_like_time(name: str) -> bool:
    """Whether a column's name looks like that of times of requests."""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name.rpartition(".")[2]).lower()
    words = _UNIT.sub("", re.sub(r"\W+", "_", words).strip("_"))
    return words in _ALONE or not _TIMES.isdisjoint(words.split("_"))


def suggested(names: Iterable[str]) -> str:
    """Suggest --columns for a file with these columns, as far as their names are clear."""
    names = list(names)
    lengths = [name for name in names if re.search("token|len|isl|osl", name, re.IGNORECASE)]
    wanted = {
        "arrival": next(filter(looks_like_time, names), None),
        "prompt": _first(lengths, "prompt|input|context|prefill|request|isl"),
        "output": _first(lengths, "output|completion|generat|response|decode|answer|osl"),
    }
    pairs = [f"{role}={name}" for role, name in wanted.items() if name is not None]
    pairs += [f"{role}=COLUMN" for role in ("prompt", "output") if wanted[role] is None]
    return f"--columns {','.join(pairs)}"


def _first(names: list[str], pattern: str) -> str | None:
    return next((name for name in names if re.search(pattern, name, re.IGNORECASE)), None)

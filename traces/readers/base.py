"""The base class of readers: the columns of a format, and how its rows become a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import DEFAULTS
from servegym.traces import files
from servegym.traces.cells import Chunk, Labels
from servegym.traces.reading import NONE, UNITS, Reading
from servegym.traces.registry import Registry
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import PrefixBlocks, Trace

Columns = dict[str, np.ndarray]
LONGEST_SPAN_S = 1e8  # three years: a later time is a date or a mistake, not a time since the start
READERS: Registry[type[Reader]] = Registry("trace format")


class Reader(ABC):
    """A format of trace files; an instance reads one file.

    name: of the format. needs: the columns by which it is recognised. optional: other columns that it reads.
    ticks_per_s: unit of its times. block_tokens: size of its prefix blocks. of_texts: whether it needs a tokenizer.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    ticks_per_s: ClassVar[float] = 1.0
    block_tokens: ClassVar[int | None] = None
    of_texts: ClassVar[bool] = False

    def __init__(
        self, path: Path, names: list[str], tokenizer: Tokenizer | str | None = None, reading: Reading | None = None
    ) -> None:
        """names: columns of the file; `needs` are among them, or named in `reading`. tokenizer: for `of_texts`."""
        self.path = path
        self.tokenizer = tokenizer
        self.reading = reading or Reading()
        self.labels = Labels()
        self.zones: set[str] = set()  # time zones of its dates
        of_file = {name: name for name in names} | self.reading.names
        read = (*self.needs, *self.optional)
        self.wanted = {name: column for name, column in of_file.items() if name in read and column != NONE}
        self.ignored = [name for name in names if name not in self.wanted.values() and not self._reaches_into(name)]
        self.notes: list[str] = []

    def _reaches_into(self, name: str) -> bool:
        """Whether `reading` names a nested field of this column."""
        return any(column.startswith(f"{name}.") for column in self.wanted.values())

    def chunks(self, rows: int | None = None) -> Iterator[Chunk]:
        """Read the rows of the file as `files.chunks` does, with this format's names of columns."""
        ids = [column for name, column in self.wanted.items() if name == "request_id"]
        for chunk in files.chunks(self.path, dict.fromkeys(self.wanted.values()), rows, ids):
            yield chunk.renamed(self.wanted)

    def dates_ns(self, chunk: Chunk, column: str) -> np.ndarray:
        """`Chunk.dates_ns`; raises WorkloadError where some rows have a zone and others none."""
        zones = chunk.zones(column)
        self.zones.update(zones.tolist())
        if "" in self.zones and len(self.zones) > 1:
            zoned = zones[0] != "" if len(set(zones)) > 1 else zones[0] == ""
            right = f"a time with{'' if zoned else 'out'} a zone (such as Z or +02:00), as other rows have"
            chunk.check(column, (zones == "") == zoned, right)
        return chunk.dates_ns(column)

    @property
    def units_per_s(self) -> float:
        """Units of its times in a second: from `reading`, else the format's own."""
        return self.ticks_per_s if self.reading.time_unit is None else UNITS[self.reading.time_unit]

    @abstractmethod
    def columns(self, chunk: Chunk) -> Columns:
        """Convert a chunk to arrays by name, the same names for each chunk of a file.

        prompt_tokens and output_tokens; `ticks` if there are times; `block_counts` (one a row) and `block_ids` (of all
        rows) if there are prefix blocks; any other field of `WORKLOAD`. Other names are left in `self.rows` for
        `settled`.
        """

    def tokens_of_a_block(self, columns: Columns) -> int | None:
        """Find the size of the prefix blocks, from all rows; None if it is not known. Raises WorkloadError."""
        del columns
        return self.block_tokens

    @abstractmethod
    def settled(self, trace: Trace) -> Trace:
        """Finish the trace, given the rows in the file's order with `arrival_s` in ticks."""

    def read(self) -> Trace:
        """Read the trace. Raises WorkloadError."""
        parts = [self.columns(chunk) for chunk in self.chunks()]
        rows = sum(len(part["prompt_tokens"]) for part in parts)
        if not rows:
            raise WorkloadError(f"{self.path.name} has no rows: a trace has at least one request")
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.rows = columns
        blocks = None
        if "block_ids" in columns:
            offsets = np.r_[0, np.cumsum(columns["block_counts"])]
            blocks = PrefixBlocks(offsets, columns["block_ids"], self.tokens_of_a_block(columns))
            self.check_blocks(blocks, columns["prompt_tokens"])
        if len(self.zones) > 1:
            zones = ", ".join(sorted(self.zones))
            self.notes.append(f"times in {len(self.zones)} zones ({zones}), each read in its own")
        provenance: dict[str, Any] = {
            "file": self.path.name,
            "sha256": files.sha256(self.path),
            "format": self.name,
            "rows": rows,
            "dropped_rows": 0,
            "notes": self.notes,
            "ignored_columns": self.ignored,
            **({"named_columns": self.reading.names} if self.reading.columns else {}),
        }
        return self.settled(
            Trace(
                name=self.path.name.split(".")[0],
                prompt_tokens=columns["prompt_tokens"],
                output_tokens=columns["output_tokens"],
                arrival_s=columns.get("ticks"),
                given={field: columns[field] for field in DEFAULTS if field in columns},
                labels=self.labels.by_column(),
                prefix_blocks=blocks,
                provenance=provenance,
                ids=columns.get("ids"),
            )
        )

    def served(self, trace: Trace) -> np.ndarray:
        """int64[...]: the rows with prompt and output tokens; adds a note if others are dropped.

        Raises WorkloadError if no row has both.
        """
        rows = np.flatnonzero((trace.prompt_tokens > 0) & (trace.output_tokens > 0))
        if not len(rows):
            raise WorkloadError(f"{self.path.name}: no row has 1 or more prompt and output tokens, as a request has")
        if dropped := len(trace) - len(rows):
            self.notes.append(f"{dropped} row{'s' * (dropped > 1)} with 0 prompt or output tokens dropped")
        return rows

    def check_blocks(self, blocks: PrefixBlocks, prompt_tokens: np.ndarray) -> None:
        """Raise WorkloadError for the first row with more blocks than its prompt has, unless its prompt is empty."""
        if blocks.block_tokens is None:
            return
        counts, most = np.diff(blocks.offsets), -(-prompt_tokens // blocks.block_tokens)
        too_many = (counts > most) & (prompt_tokens > 0)
        if too_many.any():
            at = int(np.argmax(too_many))
            raise WorkloadError(
                f"{self.path.name}, row {at + 1}: {counts[at]} prefix blocks of {blocks.block_tokens} tokens, and a "
                f"prompt of {prompt_tokens[at]}; it should be at most {most[at]} (the column prefix_block_tokens of "
                "your own file sets the size of blocks)"
            )


def check_span(file: str, seconds: float) -> None:
    """Raise WorkloadError if the time from first to last arrival is too long for a trace."""
    if seconds > LONGEST_SPAN_S:
        raise WorkloadError(
            f"{file}: from first to last arrival are {seconds:g} s; a trace spans at most {LONGEST_SPAN_S:g} "
            "(--time-unit s, ms, us or ns sets the unit of times)"
        )


def reader(kind: type[Reader]) -> type[Reader]:
    """Make a decorator that registers a reader under its name."""
    return READERS.register(kind.name)(kind)

"""What a reader is: the columns a format has, and how its rows become a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.workload import DEFAULTS
from servegym.traces import files
from servegym.traces.cells import Chunk
from servegym.traces.labels import Labels
from servegym.traces.registry import Registry
from servegym.traces.tokenizers import Tokenizer
from servegym.traces.trace import PrefixBlocks, Trace

Columns = dict[str, np.ndarray]
LONGEST_SPAN_S = 1e8  # three years: a later time is a date or a mistake, not a time since the start
READERS: Registry[type[Reader]] = Registry("trace format")


class Reader(ABC):
    """A format of trace files; an instance reads one file.

    name: what the format is called. needs: the columns it is recognised by. optional: columns it also reads.
    ticks_per_s: unit of its times. block_tokens: size of its prefix blocks. of_texts: it needs a tokenizer.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    ticks_per_s: ClassVar[float] = 1.0
    block_tokens: ClassVar[int | None] = None
    of_texts: ClassVar[bool] = False

    def __init__(self, path: Path, names: list[str], tokenizer: Tokenizer | str | None = None) -> None:
        """path: the file. names: its columns, all of `needs` among them. tokenizer: where `of_texts`."""
        self.path = path
        self.tokenizer = tokenizer
        self.labels = Labels()
        self.wanted = [name for name in names if name in (*self.needs, *self.optional)]
        self.ignored = [name for name in names if name not in self.wanted]

    @abstractmethod
    def columns(self, chunk: Chunk) -> Columns:
        """Some rows as arrays by name, the same names for each chunk of a file.

        prompt_tokens and output_tokens; `ticks` where there are times; `block_counts` (one a row) and
        `block_ids` (those of all rows) where there are prefix blocks; any other field of `WORKLOAD`. `settled` finds
        them all, and others, in `rows`.
        """

    def tokens_of_a_block(self, columns: Columns) -> int | None:
        """Size of the prefix blocks, given all rows; None: not known. Raises WorkloadError."""
        del columns
        return self.block_tokens

    @abstractmethod
    def settled(self, trace: Trace) -> Trace:
        """The trace as it is handed out, from the rows as the file has them (`arrival_s` still in ticks)."""

    def read(self) -> Trace:
        """The trace in the file. Raises WorkloadError."""
        parts = [self.columns(chunk) for chunk in files.chunks(self.path, self.wanted)]
        rows = sum(len(part["prompt_tokens"]) for part in parts)
        if not rows:
            raise WorkloadError(f"{self.path.name} has no rows: a trace has at least one request")
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.rows = columns
        blocks = None
        if "block_ids" in columns:
            offsets = np.r_[0, np.cumsum(columns["block_counts"])]
            blocks = PrefixBlocks(offsets, columns["block_ids"], self.tokens_of_a_block(columns))
        provenance: dict[str, Any] = {
            "file": self.path.name,
            "sha256": files.sha256(self.path),
            "format": self.name,
            "rows": rows,
            "dropped_rows": 0,
            "notes": [],
            "ignored_columns": self.ignored,
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
            )
        )


def reader(kind: type[Reader]) -> type[Reader]:
    """A decorator that registers a reader under its name."""
    return READERS.register(kind.name)(kind)

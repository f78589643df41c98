"""A trace of one's own: CSV, JSON lines or Parquet in servegym's words."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import LONGEST_SPAN_S, Columns, Reader, reader
from servegym.traces.trace import Trace

_LABELLED = ("client", "application", "urgency")
BLOCK_TOKENS = 512  # of a prefix block, unless the file says otherwise; Mooncake's


@reader
class OwnReader(Reader):
    """`prompt_tokens, output_tokens`, mostly `arrival_s` (from the start of the run), and what recipes set.

    priority: whole number, 0 is the highest. weight and SLOs: above 0; without ttlt_slo_s: interactive.
    predicted_output_tokens: what a predictor says, above 0; empty where it says nothing.
    client, application, urgency: whole numbers, or names, which become codes in order of appearance.
    prefix_blocks: whole numbers, equal where prompts share a block. prefix_block_tokens: its size, on all rows alike.
    Nothing is put right: a wrong row is an error.
    """

    name = "own"
    needs: ClassVar[tuple[str, ...]] = ("prompt_tokens", "output_tokens")
    optional: ClassVar[tuple[str, ...]] = (
        "arrival_s",
        "priority",
        "weight",
        "ttft_slo_s",
        "tpot_slo_s",
        "ttlt_slo_s",
        "predicted_output_tokens",
        *_LABELLED,
        "prefix_blocks",
        "prefix_block_tokens",
    )
    block_tokens = BLOCK_TOKENS

    def columns(self, chunk: Chunk) -> Columns:
        columns = {name: chunk.lengths(name) for name in self.needs}
        if "arrival_s" in chunk:
            columns["ticks"] = chunk.times("arrival_s", "seconds")
            late = columns["ticks"] > LONGEST_SPAN_S
            chunk.check("arrival_s", late, "seconds since the start of the trace, not a date")
        return columns | self.more_columns(chunk)

    def more_columns(self, chunk: Chunk) -> Columns:
        """What a recipe would set else, and prefix blocks."""
        columns: Columns = {}
        if "priority" in chunk:
            columns["priority"] = chunk.codes("priority")
        if "weight" in chunk:
            columns["weight"] = chunk.positive("weight", "a finite number above 0", finite=True)
        for name in ("ttft_slo_s", "tpot_slo_s"):
            if name in chunk:
                columns[name] = chunk.positive(name, "seconds above 0")
        if "ttlt_slo_s" in chunk:
            columns["ttlt_slo_s"] = chunk.positive("ttlt_slo_s", "seconds above 0, or empty", empty=np.inf)
        if "predicted_output_tokens" in chunk:
            columns["predicted_output_tokens"] = chunk.positive(
                "predicted_output_tokens", "tokens above 0, or empty", finite=True, empty=np.nan
            )
        for name in _LABELLED:
            if name in chunk:
                columns[name] = self.labels.codes(chunk, name)
        if "prefix_blocks" in chunk:
            columns["block_counts"], columns["block_ids"] = chunk.lists("prefix_blocks")
            if "prefix_block_tokens" in chunk:
                columns["block_tokens"] = chunk.lengths("prefix_block_tokens")
        return columns

    def tokens_of_a_block(self, columns: Columns) -> int | None:
        if "block_tokens" not in columns:
            return self.block_tokens
        sizes = columns["block_tokens"]
        if (other := sizes != sizes[0]).any():
            row = int(np.argmax(other)) + 1
            raise WorkloadError(
                f"{self.path.name}, row {row}: prefix_block_tokens is {sizes[row - 1]}, and {sizes[0]} in the first"
                " row; it should be the same on all"
            )
        return int(sizes[0])

    def settled(self, trace: Trace) -> Trace:
        if trace.arrival_s is not None and (early := np.diff(trace.arrival_s) < 0).any():
            row = int(np.argmax(early)) + 2
            before, time = trace.arrival_s[row - 2 : row]
            raise WorkloadError(
                f"{self.path.name}, row {row}: arrival_s is {time:g}, before the {before:g} of the row above;"
                " sort the file by arrival_s"
            )
        return trace

"""The reader of servegym's own format: CSV, JSON lines or Parquet."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import WEIGHTS, weights_allowed
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import LONGEST_SPAN_S, Columns, Reader, check_span, reader
from servegym.traces.reading import UNITS
from servegym.traces.trace import Trace

_LABELLED = ("client", "application", "urgency")
BLOCK_TOKENS = 512  # default size of a prefix block, Mooncake's


def slo_columns(chunk: Chunk) -> Columns:
    """Read the SLOs that a file has, each float64[rows]; an empty TTLT SLO: none."""
    columns = {name: chunk.positive(name, "seconds above 0") for name in ("ttft_slo_s", "tpot_slo_s") if name in chunk}
    if "ttlt_slo_s" in chunk:
        columns["ttlt_slo_s"] = chunk.positive("ttlt_slo_s", "seconds above 0, or empty", empty=np.inf)
    return columns


@reader
class OwnReader(Reader):
    """`prompt_tokens, output_tokens`, usually `arrival_s` (from the start of the run), and columns that recipes set.
    priority: whole number, 0 is the highest. weight and SLOs: above 0; without ttlt_slo_s: interactive.
    predicted_output_tokens: of a predictor, above 0; empty for no prediction.
    client, application, urgency: whole numbers, or names, which become codes in order of appearance.
    adapter: of LoRA, a number or name; 0 or empty for the model itself.
    prefix_blocks: whole numbers, equal where prompts share a block. prefix_block_tokens: its size, the same on all
    rows.
    request_id: name of the request in the results.
    Columns that `Reading` names may have times that are dates, or that count from any origin. Only the repairs that it
    asks for are made: a wrong row is an error.
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
        "adapter",
        "prefix_blocks",
        "prefix_block_tokens",
        "request_id",
    )
    block_tokens = BLOCK_TOKENS
    origin: Any = None  # the first time in the file, for times that count from any origin

    def columns(self, chunk: Chunk) -> Columns:
        columns = {name: self.lengths(chunk, name) for name in self.needs}
        if "arrival_s" in chunk:
            columns["ticks"] = self.seconds(chunk)
        return columns | self.more_columns(chunk)

    def lengths(self, chunk: Chunk, name: str) -> np.ndarray:
        """Read token counts; 0 is an error unless rows with 0 are dropped."""
        if self.reading.drop_empty:
            return chunk.lengths(name, least=0, empty=0.0)
        return chunk.lengths(name, hint=" (--drop-empty leaves such rows out)")

    def seconds(self, chunk: Chunk) -> np.ndarray:
        """Read arrivals, float64[rows]. Dates, and numbers with a given unit, count from the first row's."""
        unit, named = self.reading.time_unit, "arrival_s" in self.reading.names
        if not named and unit is None:
            times = chunk.times("arrival_s", "seconds", "; --columns arrival=arrival_s reads dates")
            right = "seconds since the start of the trace, not a date (or say --time-unit s, ms, us or ns)"
            chunk.check("arrival_s", times > LONGEST_SPAN_S, right)
            return times
        times, are_dates = chunk.instants("arrival_s", "" if unit else " (numbers are seconds unless --time-unit says)")
        if are_dates:
            chunk.check("arrival_s", np.full(len(chunk), unit is not None), f"a number of {unit}, as --time-unit says")
            times, per_s = self.dates_ns(chunk, "arrival_s"), UNITS["ns"]
        elif unit is None:
            right = "seconds since the start of the trace; --time-unit s, ms, us or ns says what counts from elsewhere"
            chunk.check("arrival_s", (times < 0) | (times > LONGEST_SPAN_S), right)
            return times.astype("f8")
        else:
            per_s = UNITS[unit]
        if self.origin is None:
            self.origin = times[0]
        return (times - self.origin) / per_s

    def more_columns(self, chunk: Chunk) -> Columns:
        """Read the columns that a recipe would else set, and prefix blocks."""
        columns: Columns = {}
        if "priority" in chunk:
            columns["priority"] = chunk.codes("priority")
        if "weight" in chunk:
            columns["weight"] = chunk.positive("weight", WEIGHTS, finite=True)
            chunk.check("weight", ~weights_allowed(columns["weight"]), WEIGHTS)
        columns |= slo_columns(chunk)
        if "predicted_output_tokens" in chunk:
            columns["predicted_output_tokens"] = chunk.positive(
                "predicted_output_tokens", "tokens above 0, or empty", finite=True, empty=np.nan
            )
        for name in _LABELLED:
            if name in chunk:
                columns[name] = self.labels.codes(chunk, name)
        if "adapter" in chunk:
            columns["adapter"] = self.labels.codes(chunk, "adapter", none="")
        if "prefix_blocks" in chunk:
            columns["block_counts"], columns["block_ids"] = chunk.ids("prefix_blocks")
            if "prefix_block_tokens" in chunk:
                columns["block_tokens"] = chunk.lengths("prefix_block_tokens")
        if "request_id" in chunk:
            columns["ids"] = chunk.text("request_id")
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
        served = self.served(trace)  # rows with 0 tokens are errors before, unless `reading` drops them
        if dropped := len(trace) - len(served):
            trace = trace.take(served).noted(dropped_rows=dropped)
        if trace.arrival_s is None:
            return trace
        if (early := np.diff(trace.arrival_s) < 0).any():
            if not self.reading.sort:
                row, name = int(np.argmax(early)) + 2, self.reading.names.get("arrival_s", "arrival_s")
                before, time = trace.arrival_s[row - 2 : row]
                raise WorkloadError(
                    f"{self.path.name}, row {row}: {name} is {time:g}, before the {before:g} of the row above; sort "
                    f"the file by {name}, or say --sort"
                )
            trace = trace.take(np.argsort(trace.arrival_s, kind="stable"))
            self.notes.append("rows sorted by time")
        if self.origin is None or trace.arrival_s is None:
            return trace
        arrival_s = trace.arrival_s - trace.arrival_s[0]
        check_span(self.path.name, arrival_s[-1])
        return dataclasses.replace(trace, arrival_s=arrival_s)

"""Published formats: repaired where no guess is needed; and the readers of formats with one number a column."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, Reader, check_span, reader
from servegym.traces.trace import Trace


class PublicReader(Reader):
    """A reader of a published format; its repairs are listed in the provenance.

    Rows without prompt or output tokens (failed requests, in the services' logs) are dropped and counted;
    rows out of order are sorted; the first arrival is at 0. format_of: source of the format. A file with it may come
    from anywhere, so the provenance names no licence. prompt, output: columns of lengths. time: column of arrivals and
    its unit. A column `hash_ids` has the blocks of prompts.
    """

    format_of: ClassVar[str]
    prompt: ClassVar[str]
    output: ClassVar[str]
    time: ClassVar[tuple[str, str] | None] = None
    kept: np.ndarray  # int64[requests]: rows of the file that the trace keeps, set by `settled`

    def columns(self, chunk: Chunk) -> Columns:
        columns = {} if self.time is None else {"ticks": chunk.times(*self.time)}
        columns["prompt_tokens"] = chunk.lengths(self.prompt, least=0)
        columns["output_tokens"] = chunk.lengths(self.output, least=0)
        if "hash_ids" in self.optional and "hash_ids" in chunk:
            columns["block_counts"], columns["block_ids"] = chunk.ids("hash_ids")
        return columns

    def settled(self, trace: Trace) -> Trace:
        kept = self.served(trace)
        dropped = len(trace) - len(kept)
        if (ticks := trace.arrival_s) is not None:
            ticks = ticks[kept]
            if (np.diff(ticks) < 0).any():
                self.notes.append("rows sorted by time")
                order = np.argsort(ticks, kind="stable")
                kept, ticks = kept[order], ticks[order]
            arrival_s = (ticks - ticks[0]) / self.units_per_s
            check_span(self.path.name, arrival_s[-1])
            trace = dataclasses.replace(trace.take(kept), arrival_s=arrival_s)
        elif dropped:
            trace = trace.take(kept)
        self.kept = kept
        return trace.noted(format_of=self.format_of, dropped_rows=dropped)


@reader
class AzureReader(PublicReader):
    """Azure LLM inference traces of 2023 and 2024: CSV as format_of, or the same columns as Parquet."""

    name = "azure-llm"
    needs = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    format_of = "Azure/AzurePublicDataset"
    prompt, output = "ContextTokens", "GeneratedTokens"
    ticks_per_s = 1e9

    def columns(self, chunk: Chunk) -> Columns:
        return {"ticks": self.dates_ns(chunk, "TIMESTAMP"), **super().columns(chunk)}


@reader
class LengthsReader(PublicReader):
    """Processed traces of Sarathi-Serve and Vidur: lengths without arrivals, such as ShareGPT's."""

    name = "sharegpt-lengths"
    needs = ("num_prefill_tokens", "num_decode_tokens")
    format_of = "microsoft/sarathi-serve data/processed_traces"
    prompt, output = needs


@reader
class VidurReader(PublicReader):
    """A trace replayed by Vidur, or the request metrics it writes: arrival times in seconds."""

    name = "vidur"
    needs = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
    format_of = "microsoft/vidur data/processed_traces"
    prompt, output, time = "num_prefill_tokens", "num_decode_tokens", ("arrived_at", "seconds")


@reader
class VtcReader(PublicReader):
    """VTC's trace of chatbot-arena users, compressed to ten minutes. The adapter becomes the client."""

    name = "vtc-arena"
    needs = ("adapter_dir", "prompt_len", "output_len", "req_time")
    format_of = "Ying1123/VTC-artifact fair_bench"
    prompt, output, time = "prompt_len", "output_len", ("req_time", "seconds")

    def columns(self, chunk: Chunk) -> Columns:
        return {**super().columns(chunk), "client": self.labels.codes(chunk, "adapter_dir", "client")}

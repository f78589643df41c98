"""Mooncake's traces (FAST 2025): arrivals in milliseconds, lengths, and the 512-token blocks of prompts."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class MooncakeReader(PublicReader):
    """JSON lines as published, or the same columns as Parquet. Times come in ticks of 3 s."""

    name = "mooncake"
    needs = ("timestamp", "input_length", "output_length")
    source = "kvcache-ai/Mooncake FAST25-release/traces, Apache-2.0"
    optional = ("hash_ids",)
    ticks_per_s = 1e3
    block_tokens = 512

    def columns(self, chunk: Chunk) -> Columns:
        columns = {
            "ticks": chunk.times("timestamp", "milliseconds"),
            "prompt_tokens": chunk.lengths("input_length", least=0),
            "output_tokens": chunk.lengths("output_length", least=0),
        }
        if "hash_ids" in chunk:
            columns["block_counts"], columns["block_ids"] = chunk.lists("hash_ids")
        return columns

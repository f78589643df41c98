"""Processed traces of Sarathi-Serve and Vidur with lengths only, such as ShareGPT's."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class LengthsReader(PublicReader):
    """Lengths without arrivals."""

    name = "sharegpt-lengths"
    needs = ("num_prefill_tokens", "num_decode_tokens")
    format_of = "microsoft/sarathi-serve data/processed_traces"

    def columns(self, chunk: Chunk) -> Columns:
        return {
            "prompt_tokens": chunk.lengths("num_prefill_tokens", least=0),
            "output_tokens": chunk.lengths("num_decode_tokens", least=0),
        }

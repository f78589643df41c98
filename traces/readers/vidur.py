"""Vidur's traces: lengths with arrival times in seconds."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class VidurReader(PublicReader):
    """A trace replayed by Vidur, or the request metrics it writes."""

    name = "vidur"
    needs = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
    format_of = "microsoft/vidur data/processed_traces"

    def columns(self, chunk: Chunk) -> Columns:
        return {
            "ticks": chunk.times("arrived_at", "seconds"),
            "prompt_tokens": chunk.lengths("num_prefill_tokens", least=0),
            "output_tokens": chunk.lengths("num_decode_tokens", least=0),
        }

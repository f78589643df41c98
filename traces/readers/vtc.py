"""The arena trace of VTC: requests of chatbot-arena users to their adapters, squeezed to ten minutes."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class VtcReader(PublicReader):
    """The fields of the authors' requests as columns. The adapter is the client."""

    name = "vtc-arena"
    needs = ("adapter_dir", "prompt_len", "output_len", "req_time")
    format_of = "Ying1123/VTC-artifact fair_bench"

    def columns(self, chunk: Chunk) -> Columns:
        return {
            "ticks": chunk.times("req_time", "seconds"),
            "prompt_tokens": chunk.lengths("prompt_len", least=0),
            "output_tokens": chunk.lengths("output_len", least=0),
            "client": self.labels.codes(chunk, "adapter_dir", "client"),
        }

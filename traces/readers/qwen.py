"""Qwen-Bailian: requests to a Qwen service of Alibaba Cloud, with their type and prefix blocks of 16 tokens."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class QwenReader(PublicReader):
    """JSON lines as published. The type (text, search, image, file) becomes the application.

    Turns of a chat are requests of their own, as FlowPrefill takes them. Written from the documented fields;
    no file of it was at hand.
    """

    name = "qwen-bailian"
    needs = ("chat_id", "timestamp", "input_length", "output_length")
    optional = ("type", "hash_ids")
    source = "alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0"
    block_tokens = 16

    def columns(self, chunk: Chunk) -> Columns:
        columns = {
            "ticks": chunk.times("timestamp", "seconds"),
            "prompt_tokens": chunk.lengths("input_length", least=0),
            "output_tokens": chunk.lengths("output_length", least=0),
        }
        if "type" in chunk:
            columns["application"] = self.labels.codes(chunk, "type", "application")
        if "hash_ids" in chunk:
            columns["block_counts"], columns["block_ids"] = chunk.lists("hash_ids")
        return columns

"""Azure LLM inference traces of 2023 and 2024: one row a request, with a wall clock."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class AzureReader(PublicReader):
    """CSV as format_of, or the same columns as Parquet."""

    name = "azure-llm"
    needs = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    format_of = "Azure/AzurePublicDataset"
    ticks_per_s = 1e9

    def columns(self, chunk: Chunk) -> Columns:
        return {
            "ticks": self.dates_ns(chunk, "TIMESTAMP"),
            "prompt_tokens": chunk.lengths("ContextTokens", least=0),
            "output_tokens": chunk.lengths("GeneratedTokens", least=0),
        }

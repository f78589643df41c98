"""BurstGPT: one row a request to ChatGPT or GPT-4 of a university, with a clock in whole seconds."""

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader


@reader
class BurstGptReader(PublicReader):
    """CSV as published, of releases 1 and 2. The log type (conversation or API) becomes the application.

    Written from the documented columns; no file of it was at hand.
    """

    name = "burstgpt"
    needs = ("Timestamp", "Request tokens", "Response tokens")
    optional = ("Log Type",)
    source = "HPMLL/BurstGPT, CC-BY-4.0"

    def columns(self, chunk: Chunk) -> Columns:
        columns = {
            "ticks": chunk.times("Timestamp", "seconds"),
            "prompt_tokens": chunk.lengths("Request tokens", least=0),
            "output_tokens": chunk.lengths("Response tokens", least=0),
        }
        if "Log Type" in chunk:
            columns["application"] = self.labels.codes(chunk, "Log Type", "application")
        return columns

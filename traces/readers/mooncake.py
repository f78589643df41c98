"""Mooncake's traces (FAST 2025): arrivals in milliseconds, lengths, and the 512-token blocks of prompts."""

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.readers.base import reader
from servegym.traces.readers.public import PublicReader
from servegym.traces.trace import Trace

HIGHEST_RATE_PER_S = 1000.0  # above this, times are taken to be in another unit


@reader
class MooncakeReader(PublicReader):
    """JSON lines as format_of, or the same columns as Parquet. Mooncake's times are multiples of 3 s.

    Files of others with these columns may have seconds: fractions, or a rate that no cluster serves, are an error
    unless the unit is given.
    """

    name = "mooncake"
    needs = ("timestamp", "input_length", "output_length")
    format_of = "kvcache-ai/Mooncake FAST25-release/traces"
    optional = ("hash_ids",)
    ticks_per_s = 1e3
    prompt, output, time = "input_length", "output_length", ("timestamp", "milliseconds")
    block_tokens = 512

    def settled(self, trace: Trace) -> Trace:
        ticks = trace.arrival_s
        if self.reading.time_unit is None and ticks is not None:
            span_s = float(np.ptp(ticks)) / self.ticks_per_s
            rate_per_s = (len(ticks) - 1) / span_s if span_s > 0 else 0.0
            fractions = int((ticks != np.floor(ticks)).sum())
            why = f"{fractions} of {len(ticks)} are fractions" if fractions else f"that is {rate_per_s:,.0f} requests/s"
            if fractions or rate_per_s > HIGHEST_RATE_PER_S:
                raise WorkloadError(
                    f"{self.path.name}: timestamp is in milliseconds in files of this format (Mooncake's), and {why}; "
                    "give --time-unit s if these are seconds, or --time-unit ms"
                )
        return super().settled(trace)

"""Formats that others publish: read as they are, and repaired where that needs no guess."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.readers.base import Reader, check_span
from servegym.traces.trace import Trace


class PublicReader(Reader):
    """A reader of a published format; its repairs are listed in the provenance.

    Rows without prompt or output tokens (failed requests, in the services' logs) are dropped and counted;
    rows out of order are sorted; the first arrival is at 0. `format_of` says whose format it is: a file that has it
    may be anybody's, so nothing is said of its licence.
    """

    format_of: ClassVar[str]
    kept: np.ndarray  # int64[requests]: the rows of the file that the trace has, once it is settled

    def settled(self, trace: Trace) -> Trace:
        served = (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
        kept = np.flatnonzero(served)
        dropped = int(len(trace) - len(kept))
        if not len(kept):
            raise WorkloadError(f"{self.path.name}: no row has 1 or more prompt and output tokens, as a request has")
        if dropped:
            self.notes.append(f"{dropped} row{'s' * (dropped > 1)} with 0 prompt or output tokens dropped")
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

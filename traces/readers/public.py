"""Formats that others publish: taken as they are, and put right where that needs no guess."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.readers.base import LONGEST_SPAN_S, Reader
from servegym.traces.trace import Trace


class PublicReader(Reader):
    """A reader of a published format; what it put right is in the provenance.

    Rows without prompt or output tokens (failed requests, in the services' logs) are dropped and counted;
    rows out of order are sorted; the first arrival is at 0. `source` names publisher and licence.
    """

    source: ClassVar[str]

    def settled(self, trace: Trace) -> Trace:
        notes = []
        served = (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
        dropped = int(len(trace) - served.sum())
        if dropped == len(trace):
            raise WorkloadError(f"{self.path.name}: no row has 1 or more prompt and output tokens, as a request has")
        if dropped:
            notes.append(f"{dropped} rows with 0 prompt or output tokens dropped")
            trace = trace.take(np.flatnonzero(served))
        if (ticks := trace.arrival_s) is not None:
            if (np.diff(ticks) < 0).any():
                notes.append("rows sorted by time")
                order = np.argsort(ticks, kind="stable")
                trace, ticks = trace.take(order), ticks[order]
            arrival_s = (ticks - ticks[0]) / self.ticks_per_s
            if arrival_s[-1] > LONGEST_SPAN_S:
                raise WorkloadError(
                    f"{self.path.name}: from first to last arrival are {arrival_s[-1]:g} s;"
                    f" a trace spans at most {LONGEST_SPAN_S:g}"
                )
            trace = dataclasses.replace(trace, arrival_s=arrival_s)
        provenance = {**trace.provenance, "source": self.source, "dropped_rows": dropped, "notes": notes}
        return dataclasses.replace(trace, provenance=provenance)

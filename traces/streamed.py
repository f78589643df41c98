"""A trace that is read in chunks, twice: once for totals over the whole file, once to be served."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import WORKLOAD
from servegym.simulator.runs.streaming import WholeTrace
from servegym.traces import files
from servegym.traces.readers import recognised
from servegym.traces.readers.own import OwnReader
from servegym.traces.reading import Reading

ROWS = 32_768  # of a chunk, at most
APART = ("tpot_slo_s", "client", "application")  # columns of which the sample has one request for each value


class StreamedTrace:
    """A file of one's own format, with arrivals of its own.

    Raises WorkloadError for another format, and for a file without times or with prefix blocks.
    """

    def __init__(self, path: str | os.PathLike[str], reading: Reading | None = None) -> None:
        self.path, self.reading = Path(path), reading or Reading()
        self.names = files.column_names(self.path)
        kind = recognised(self.path.name, self.names, self.reading)
        wanted = kind(self.path, self.names, None, self.reading).wanted
        why = None
        if self.reading.sort or self.reading.drop_empty:
            why = "is to be put right (--sort, --drop-empty), which `servegym trace convert` does"
        elif kind is not OwnReader:
            why = f"is in the format {kind.name}; `servegym trace` writes it in servegym's own"
        elif "arrival_s" not in wanted:
            why = "has no arrival_s, and arrivals are drawn for all requests at once"
        elif "prefix_blocks" in wanted:
            why = "has prefix_blocks, and what prompts share is worked out of all requests at once"
        if why is not None:
            raise WorkloadError(f"{self.path.name} {why}: it cannot be streamed")

    def chunks(self) -> Iterator[Workload]:
        """Read the requests in order, at most `ROWS` at a time. Raises WorkloadError as `read_trace`."""
        reader, first_row, before_s = OwnReader(self.path, self.names, None, self.reading), 1, 0.0
        for chunk in reader.chunks(ROWS):
            columns = reader.columns(chunk)
            arrival_s = columns.pop("ticks")
            early = np.diff(arrival_s, prepend=before_s) < 0
            if early.any():
                at = int(np.argmax(early))
                above_s = arrival_s[at - 1] if at else before_s
                raise WorkloadError(
                    f"{self.path.name}, row {first_row + at}: arrival_s is {arrival_s[at]:g}, before the {above_s:g} "
                    "of the row above; sort the file by arrival_s"
                )
            name = self.path.name.split(".")[0]
            ids = columns.pop("ids", None)
            yield dataclasses.replace(Workload.from_columns({**columns, "arrival_s": arrival_s}, name), ids=ids)
            first_row, before_s = first_row + len(arrival_s), float(arrival_s[-1])

    def whole(self) -> WholeTrace:
        """Read it through. Raises WorkloadError for a file without rows too."""
        sample, requests, prompt_tokens, output_tokens = np.zeros(0, WORKLOAD), 0, 0, 0
        for chunk in self.chunks():
            requests += len(chunk)
            prompt_tokens += int(chunk.table["prompt_tokens"].sum(dtype="i8"))
            output_tokens += int(chunk.table["output_tokens"].sum(dtype="i8"))
            sample = sampled(np.concatenate([sample, chunk.table]))
        if not requests:
            raise WorkloadError(f"{self.path.name} has no rows: a trace has at least one request")
        name, provenance = self.path.name.split(".")[0], {"file": self.path.name, "sha256": files.sha256(self.path)}
        return WholeTrace(
            Workload(sample, name, provenance), requests, prompt_tokens / requests, output_tokens / requests
        )


def sampled(table: np.ndarray) -> np.ndarray:
    """Select of WORKLOAD[...] those that `WholeTrace.sample` has, in order."""
    kept = {0, len(table) - 1, int(np.argmax(table["prompt_tokens"]))}
    kept.add(int(np.argmax(table["prompt_tokens"].astype("i8") + table["output_tokens"])))
    for field in APART:
        kept.update(np.unique(table[field], return_index=True)[1].tolist())
    return table[sorted(kept)]

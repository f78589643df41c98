"""Request traces of NVIDIA Dynamo (`DYN_REQUEST_TRACE=1`): a line an event; `request_end` events are the requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import MAX_TOKENS
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "dynamo.request.trace.v1"
REQUEST = "request_end"  # the event with the lengths and times of a request
# Names of the fields in `request`; times in milliseconds.
FIELDS = {
    "arrival_ms": "request_received_ms", "prompt_tokens": "input_tokens", "output_tokens": "output_tokens",
    "ttft_ms": "ttft_ms", "e2e_ms": "total_time_ms",
}  # fmt: skip


def requests_in(rows: Chunk) -> pd.DataFrame:
    """Read the requests among events: `FIELDS`, and `blocks` and `block_tokens` of the replay record (0: none).

    Raises WorkloadError, with the row, for an event of another schema, and for a request without a field.
    """
    import pandas as pd

    schemas = rows.frame["schema"]
    rows.check("schema", (schemas != SCHEMA).to_numpy(), SCHEMA)
    found = []
    for at in np.flatnonzero((rows.frame["event_type"] == REQUEST).to_numpy()):
        request = rows.frame["request"].iloc[at]
        where = f"{rows.file}, row {rows.first_row + at}"
        if not isinstance(request, dict):
            raise WorkloadError(f"{where}: request is {request!r}; a {REQUEST} event should have one")
        replay = request["replay"] if isinstance(request.get("replay"), dict) else {}
        fields = {name: request.get(field) for name, field in FIELDS.items()}
        fields["prompt_tokens"] = replay.get("input_length", fields["prompt_tokens"])
        for name in ("arrival_ms", "prompt_tokens", "output_tokens"):
            _check(fields[name], MAX_TOKENS if name != "arrival_ms" else 2**53, f"{where}: request.{FIELDS[name]}")
        blocks = replay.get("input_sequence_hashes") or []
        size = replay.get("trace_block_size", 0) if blocks else 0
        found.append(fields | {"blocks": blocks, "block_tokens": size})
    return pd.DataFrame(found, columns=[*FIELDS, "blocks", "block_tokens"])


def _check(value: Any, most: int, what: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most or value != int(value):
        raise WorkloadError(f"{what} is {value!r}; it should be a whole number, 0 to {most}")


@reader
class DynamoReader(PublicReader):
    """JSON lines of events; join shards with `cat *.jsonl.gz > all.jsonl.gz`. Events of tools are skipped.

    Block hashes of prompts are those of the request's replay record. The turns of a session arrive at their recorded
    times.
    """

    name = "dynamo"
    needs = ("schema", "event_type", "request")
    format_of = f"NVIDIA Dynamo's request traces, {SCHEMA}"
    ticks_per_s = 1e3

    def columns(self, chunk: Chunk) -> Columns:
        table = requests_in(chunk)
        blocks = [block for of_one in table["blocks"] for block in of_one]
        if not all(isinstance(block, int) and 0 <= block < 2**64 for block in blocks):
            raise WorkloadError(f"{self.path.name}: input_sequence_hashes should be whole numbers, 0 to {2**64 - 1}")
        return {
            "ticks": table["arrival_ms"].to_numpy("f8"),
            "prompt_tokens": table["prompt_tokens"].to_numpy("i4"),
            "output_tokens": table["output_tokens"].to_numpy("i4"),
            "block_counts": np.array([len(of_one) for of_one in table["blocks"]], "i8"),
            "block_ids": np.array(blocks, "u8").view("i8"),
            "block_tokens": table["block_tokens"].to_numpy("i8"),
        }

    def tokens_of_a_block(self, columns: Columns) -> int | None:
        sizes = np.unique(columns["block_tokens"][columns["block_counts"] > 0])
        if len(sizes) > 1 or (len(sizes) and sizes[0] < 1):
            text = ", ".join(map(str, sizes))
            raise WorkloadError(f"{self.path.name}: trace_block_size is {text}; it should be one size, 1 token or more")
        return int(sizes[0]) if len(sizes) else None

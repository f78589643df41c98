"""OpenTelemetry spans with GenAI attributes, such as vLLM's, as a collector's file exporter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import MAX_TOKENS
from servegym.traces.cells import Chunk, number_of
from servegym.traces.readers.base import LONGEST_SPAN_S, Columns, reader
from servegym.traces.readers.public import PublicReader

if TYPE_CHECKING:
    import pandas as pd

# The first two attributes are those of the semantic conventions, the others vLLM's.
ATTRIBUTES = {
    "gen_ai.usage.input_tokens": "prompt_tokens", "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.prompt_tokens": "prompt_tokens", "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.latency.time_to_first_token": "ttft_s", "gen_ai.latency.e2e": "e2e_s",
}  # fmt: skip
COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")


def requests_in(rows: Chunk) -> pd.DataFrame:
    """Read `COLUMNS` from the spans that have token counts; other spans are skipped.

    e2e_s: of the attribute, else the span's length. ttft_s: nan without the attribute. Raises WorkloadError, with the
    row, for spans without times and for attributes that are not numbers.
    """
    import pandas as pd

    found = []
    for at, resources in enumerate(rows.frame["resourceSpans"]):
        where = f"{rows.file}, row {rows.first_row + at}"
        for span in _spans_in(resources, where):
            known = [(key, value) for key, value in _attributes(span) if key in ATTRIBUTES]
            figures = {ATTRIBUTES[key]: _value(key, value, where) for key, value in known}
            if not {"prompt_tokens", "output_tokens"} <= figures.keys():
                continue
            begun, ended = (_nanoseconds(span, name, where) for name in ("startTimeUnixNano", "endTimeUnixNano"))
            found.append({"arrival_ns": begun, "ttft_s": np.nan, "e2e_s": (ended - begun) / 1e9, **figures})
    return pd.DataFrame(found, columns=list(COLUMNS))


def _spans_in(resources: Any, where: str) -> Iterator[dict[str, Any]]:
    try:
        for resource in resources:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]
    except (TypeError, KeyError):
        raise WorkloadError(f"{where}: it should be OTLP JSON: resourceSpans, scopeSpans, spans") from None


def _attributes(span: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; a value is an object with one of intValue (a string, as OTLP JSON has it) and so on."""
    for attribute in span.get("attributes", ()):
        yield attribute["key"], next(iter(attribute["value"].values()), None)


def _value(key: str, value: Any, where: str) -> float:
    is_length = ATTRIBUTES[key] in ("prompt_tokens", "output_tokens")
    number = number_of(value)
    if not 0 <= number <= (MAX_TOKENS if is_length else LONGEST_SPAN_S) or (is_length and number != int(number)):
        right = f"a whole number of tokens, 0 to {MAX_TOKENS}" if is_length else "seconds"
        raise WorkloadError(f"{where}: {key} is {value!r}; it should be {right}")
    return number


def _nanoseconds(span: dict[str, Any], name: str, where: str) -> int:
    try:
        return int(span[name])
    except (KeyError, TypeError, ValueError):
        raise WorkloadError(f"{where}: {name} is {span.get(name)!r}; it should be nanoseconds since 1970") from None


@reader
class OpenTelemetryReader(PublicReader):
    """OTLP JSON, a line an export. Spans with GenAI's token counts are requests, which arrive when the span starts."""

    name = "opentelemetry"
    needs = ("resourceSpans",)
    format_of = "OpenTelemetry's OTLP JSON, attributes of GenAI"
    ticks_per_s = 1e9
    first_ns: int | None = None  # ticks count from the first span, as nanoseconds since 1970 exceed 2^53

    def columns(self, chunk: Chunk) -> Columns:
        table = requests_in(chunk)
        if self.first_ns is None and len(table):
            self.first_ns = int(table["arrival_ns"].iloc[0])
        ticks = [int(arrival_ns) - (self.first_ns or 0) for arrival_ns in table["arrival_ns"]]
        return {
            "ticks": np.array(ticks, "f8"),
            "prompt_tokens": table["prompt_tokens"].to_numpy("i4"),
            "output_tokens": table["output_tokens"].to_numpy("i4"),
        }

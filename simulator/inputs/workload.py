"""A workload: requests with arrival times, lengths, SLOs and weights, checked once and then only read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import NO_TURN, SessionDependencies
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.records.types import LATEST_S, WORKLOAD

FIELDS: tuple[str, ...] = tuple(WORKLOAD.names or ())
DEFAULTS = {
    "priority": 0,
    "weight": 1.0,
    "ttft_slo_s": 1.0,
    "tpot_slo_s": 0.05,
    "ttlt_slo_s": np.inf,
    "predicted_output_tokens": np.nan,
    "client": 0,
    "application": 0,
    "urgency": 0,
    "adapter": 0,
}
WEIGHT_BOUNDS = (1e-9, 1e9)  # sums of gains, and their squares, stay far from what float64 can hold
WEIGHTS = f"a number from {WEIGHT_BOUNDS[0]:g} to {WEIGHT_BOUNDS[1]:g}"
MAX_TOKENS = 2**24  # a longer prompt or output is a broken file, not a request


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    table: structured array of dtype `WORKLOAD`, one row a request; not to be written to.
    name: what to call it in tables. provenance: where it came from, for the record beside results.
    prefixes: the chunks of the prompts (and answers), in order of the table, where prompts are known to begin alike.
    turns: which request follows which, where any does. Those that do are the last of the table, and their arrival_s is
        NaN: it is not known before a run.
    ids: what each request is called elsewhere, for the tables of results; None: nothing.

    Raises WorkloadError for what cannot be served: no request, a time that is negative, NaN, beyond 1e12 s or before
    the one above it, a length below 1, an SLO that is not positive, a weight out of `WEIGHT_BOUNDS`.
    """

    table: np.ndarray
    name: str = "workload"
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefixes: Prompts | None = None
    turns: SessionDependencies | None = None
    ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.ids is not None and len(self.ids) != len(self.table):
            raise WorkloadError(f"workload '{self.name}': {len(self.ids)} ids; it has {len(self.table)} requests")
        if self.turns is not None:
            check_turns(self.turns, self.table, self.name)
        validate(self.table, self.name, self.known)
        if self.prefixes is not None:
            check_prefixes(self.prefixes, self.table, self.name)
        self.table.flags.writeable = False

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        name: str = "workload",
        provenance: Mapping[str, Any] | None = None,
        turns: SessionDependencies | None = None,
    ) -> Workload:
        """Build from arrays of equal length (or scalars for all requests), one for each field of `WORKLOAD`.

        arrival_s, prompt_tokens and output_tokens are needed; the others have the defaults of `DEFAULTS`.
        turns: which of these follows which. They may be in any order, and are brought into that of a workload; what
            arrival_s says of those that follow another does not matter.
        """
        unknown = sorted(set(columns) - set(FIELDS))
        missing = sorted({"arrival_s", "prompt_tokens", "output_tokens"} - set(columns))
        if unknown or missing:
            raise WorkloadError(
                f"workload '{name}': "
                + "; ".join(
                    f"{what} column{'s' * (len(which) > 1)} {', '.join(which)}"
                    for what, which in (("unknown", unknown), ("missing", missing))
                    if which
                )
                + f"; a workload has {', '.join(FIELDS)}"
            )
        lengths = {key: np.shape(value)[0] for key, value in columns.items() if np.ndim(value) == 1}
        if len(set(lengths.values())) > 1:
            raise WorkloadError(f"workload '{name}': columns differ in length: {lengths}")
        table = np.empty(max(lengths.values(), default=0), WORKLOAD)
        for field in FIELDS:
            table[field] = _as_field(columns.get(field, DEFAULTS.get(field)), field, name)
        if turns is not None and len(turns) == len(table):
            order = turns.order(table["arrival_s"])
            table, turns = table[order], turns.take(order)
            table["arrival_s"][turns.after != NO_TURN] = np.nan
        return cls(table, name, provenance or {}, turns=turns)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def digest(self) -> str:
        """Digest of the requests, to tell two workloads apart in a record of results."""
        digest = hashlib.sha256()
        for field in FIELDS:  # field by field: the padding between fields is not part of a request
            if field == "adapter" and not self.table[field].any():
                continue  # as before there was such a column
            digest.update(np.ascontiguousarray(self.table[field]).tobytes())
        if self.prefixes is not None:
            digest.update(str(self.prefixes.chunk_tokens).encode())
            digest.update(self.prefixes.offsets.tobytes() + self.prefixes.chunks.tobytes())
        if self.turns is not None:
            digest.update(self.turns.after.tobytes() + self.turns.think_s.tobytes())
        return digest.hexdigest()[:16]

    @property
    def known(self) -> int:
        """How many requests, the first of the table, follow none: their arrivals are known."""
        return len(self) if self.turns is None else int(np.count_nonzero(self.turns.after == NO_TURN))

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate; inf when all arrive at once. Of sessions: that at which they begin, times their length."""
        span = self.table["arrival_s"][self.known - 1] - self.table["arrival_s"][0]
        return float((self.known - 1) / span * (len(self) / self.known)) if span > 0 else float("inf")

    def replace(self, name: str | None = None, **columns: Any) -> Workload:
        """The same requests with some columns changed (arrays or scalars); sorted by arrival again."""
        table = self.table.copy()
        for field, value in columns.items():
            if field not in FIELDS:
                raise WorkloadError(f"unknown column {field}; a workload has {', '.join(FIELDS)}")
            values = _as_field(value, field, self.name)
            if values.ndim > 0 and values.shape != (len(table),):
                raise WorkloadError(f"workload '{self.name}': {field} has shape {values.shape}, not ({len(table)},)")
            table[field] = values
        prefixes, turns, ids = self.prefixes, self.turns, self.ids
        if "arrival_s" in columns:
            table["arrival_s"][self.known :] = np.nan  # sorted last
            by_arrival = np.argsort(table["arrival_s"], kind="stable")
            table = table[by_arrival]
            prefixes = None if prefixes is None else prefixes.take(by_arrival)
            turns = None if turns is None else turns.take(by_arrival)
            ids = None if ids is None else ids[by_arrival]
        return Workload(table, name or self.name, self.provenance, prefixes, turns, ids)

    def at_rate(self, rate_per_s: float) -> Workload:
        """The same arrivals stretched or squeezed to this mean rate, starting at 0."""
        if not 0 < rate_per_s < np.inf:
            raise WorkloadError(f"a rate of {rate_per_s} requests/s: a rate is above 0 and finite")
        arrival_s = self.table["arrival_s"] - self.table["arrival_s"][0]
        if self.known < 2 or arrival_s[self.known - 1] == 0:
            raise WorkloadError(
                f"workload '{self.name}' has no time between arrivals to stretch; draw arrivals instead"
            )
        table = self.table.copy()
        table["arrival_s"] = arrival_s * (self.rate_per_s / rate_per_s)
        return Workload(table, self.name, self.provenance, self.prefixes, self.turns, self.ids)


def check_turns(turns: SessionDependencies, table: np.ndarray, name: str) -> None:
    """Raise WorkloadError unless these are turns of the requests of the table, in the order of a workload."""
    if len(turns) != len(table):
        raise WorkloadError(f"workload '{name}': turns of {len(turns)} requests; it has {len(table)}")
    follows = turns.after != NO_TURN
    if (np.diff(follows.astype("i1")) < 0).any():
        raise WorkloadError(f"workload '{name}': requests that follow another should be the last of the table")
    if not np.isnan(table["arrival_s"][follows]).all():
        raise WorkloadError(f"workload '{name}': arrival_s of requests that follow another should be NaN")


def check_prefixes(prefixes: Prompts, table: np.ndarray, name: str) -> None:
    """Raise WorkloadError unless these are chunks of the prompts of the table."""
    if len(prefixes.offsets) != len(table) + 1:
        raise WorkloadError(
            f"workload '{name}': chunks of {len(prefixes.offsets) - 1} prompts; it has {len(table)} requests"
        )
    context = table["prompt_tokens"].astype("i8") + table["output_tokens"]
    too_long = np.diff(prefixes.offsets) * prefixes.chunk_tokens > context
    if too_long.any():
        at = int(np.argmax(too_long))
        raise WorkloadError(
            f"workload '{name}', request {at}: {prefixes.offsets[at + 1] - prefixes.offsets[at]} chunks of "
            f"{prefixes.chunk_tokens} tokens; its prompt and answer have {context[at]} tokens (full chunks only)"
        )


def _as_field(value: Any, field: str, name: str) -> np.ndarray:
    """`value` as numbers that fit the field, or an error that names the first one that does not."""
    try:
        numbers = np.asarray(value, dtype="f8")
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"workload '{name}': column {field} is not numeric: {error}") from None
    if WORKLOAD[field].kind == "i":
        bad = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) > 2**31 - 1)
        if bad.any():
            at = int(np.argmax(bad.ravel()))
            raise WorkloadError(
                f"workload '{name}', request {at}: {field} is {numbers.ravel()[at]:g}; it is a whole number"
            )
    return numbers


def weights_allowed(weights: np.ndarray) -> np.ndarray:
    """bool[requests]."""
    return (weights >= WEIGHT_BOUNDS[0]) & (weights <= WEIGHT_BOUNDS[1])


def validate(table: np.ndarray, name: str, known: int) -> None:
    """Raise WorkloadError unless `table` is a workload a simulator can run. known: how many arrivals are known."""
    if table.dtype != WORKLOAD:
        raise WorkloadError(f"workload '{name}': the table has dtype {table.dtype}, not WORKLOAD")
    if len(table) == 0:
        raise WorkloadError(f"workload '{name}' has no requests")
    arrival_s = table["arrival_s"]
    is_time = (arrival_s >= 0) & (arrival_s <= LATEST_S)
    earlier = np.zeros(len(table), bool)
    earlier[1:] = arrival_s[1:] < arrival_s[:-1]
    rules = [
        ("arrival_s", ~is_time & (np.arange(len(table)) < known), f"a time from 0 to {LATEST_S:g} s"),
        ("arrival_s", earlier, "not before the request above it (sort by arrival)"),
        ("prompt_tokens", (table["prompt_tokens"] < 1) | (table["prompt_tokens"] > MAX_TOKENS), f"1 to {MAX_TOKENS}"),
        ("output_tokens", (table["output_tokens"] < 1) | (table["output_tokens"] > MAX_TOKENS), f"1 to {MAX_TOKENS}"),
        ("weight", ~weights_allowed(table["weight"]), WEIGHTS),
        ("ttft_slo_s", ~((table["ttft_slo_s"] > 0) & np.isfinite(table["ttft_slo_s"])), "above 0 and finite"),
        ("tpot_slo_s", ~((table["tpot_slo_s"] > 0) & np.isfinite(table["tpot_slo_s"])), "above 0 and finite"),
        ("ttlt_slo_s", ~(table["ttlt_slo_s"] > 0), "above 0"),
        ("predicted_output_tokens", table["predicted_output_tokens"] <= 0, "above 0, or NaN where unknown"),
        ("client", table["client"] < 0, "0 or more"),
        ("application", table["application"] < 0, "0 or more"),
        ("adapter", table["adapter"] < 0, "0 or more"),
    ]
    for field, bad, right in rules:
        if bad.any():
            at = int(np.argmax(bad))
            raise WorkloadError(
                f"workload '{name}', request {at}: {field} is {table[field][at].item()}; it should be {right}"
                + (f" ({int(bad.sum())} such requests)" if bad.sum() > 1 else "")
            )

"""Workloads: requests with arrival times, lengths, SLOs and weights, checked once and then only read."""

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
WEIGHT_BOUNDS = (1e-9, 1e9)  # keeps sums of gains, and their squares, within float64
WEIGHTS = f"a number from {WEIGHT_BOUNDS[0]:g} to {WEIGHT_BOUNDS[1]:g}"
MAX_TOKENS = 2**24  # a longer prompt or output must be an error in the file


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    table: structured array of dtype `WORKLOAD`, a row for each request, read-only.
    name: its name in tables. provenance: where it comes from, for records of results.
    prefixes: chunks of prompts (and answers), in order of the table; None: the trace has no prefixes.
    turns: which request follows which; None: none does. Requests that follow another are the last rows of the table,
        and their arrival_s is NaN, as it is not known before a run.
    ids: the requests' identifiers in the trace, for tables of results; None: it has none.

    Raises WorkloadError for no requests, an arrival that is negative, NaN, beyond 1e12 s or before the one above it, a
    length below 1, an SLO that is not positive, or a weight outside `WEIGHT_BOUNDS`.
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
        """Build a workload from arrays of equal length (or scalars for all requests), one for each field of `WORKLOAD`.

        arrival_s, prompt_tokens and output_tokens are required; the others default to `DEFAULTS`.
        turns: which request follows which. The requests may be in any order, and are sorted; arrival_s of requests that
            follow another is ignored.
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
        """Digest of the requests, which identifies a workload in records of results."""
        digest = hashlib.sha256()
        for field in FIELDS:  # without the padding between fields
            if field == "adapter" and not self.table[field].any():
                continue  # keeps the digests of workloads without adapters
            digest.update(np.ascontiguousarray(self.table[field]).tobytes())
        if self.prefixes is not None:
            digest.update(str(self.prefixes.chunk_tokens).encode())
            digest.update(self.prefixes.offsets.tobytes() + self.prefixes.chunks.tobytes())
        if self.turns is not None:
            digest.update(self.turns.after.tobytes() + self.turns.think_s.tobytes())
        return digest.hexdigest()[:16]

    @property
    def known(self) -> int:
        """Number of requests that follow none, the first rows of the table: their arrivals are known."""
        return len(self) if self.turns is None else int(np.count_nonzero(self.turns.after == NO_TURN))

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate; inf if all arrive at once. With sessions: their rate times their mean length."""
        span = self.table["arrival_s"][self.known - 1] - self.table["arrival_s"][0]
        return float((self.known - 1) / span * (len(self) / self.known)) if span > 0 else float("inf")

    def replace(self, name: str | None = None, **columns: Any) -> Workload:
        """Return the same requests with some columns replaced (arrays or scalars), sorted by arrival again."""
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


def check_turns(turns: SessionDependencies, table: np.ndarray, name: str) -> None:
    """Raise WorkloadError unless these are turns of the table's requests, in the order of a workload."""
    if len(turns) != len(table):
        raise WorkloadError(f"workload '{name}': turns of {len(turns)} requests; it has {len(table)}")
    follows = turns.after != NO_TURN
    if (np.diff(follows.astype("i1")) < 0).any():
        raise WorkloadError(f"workload '{name}': requests that follow another should be the last of the table")
    if not np.isnan(table["arrival_s"][follows]).all():
        raise WorkloadError(f"workload '{name}': arrival_s of requests that follow another should be NaN")


def check_prefixes(prefixes: Prompts, table: np.ndarray, name: str) -> None:
    """Raise WorkloadError unless these are chunks of the table's prompts."""
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
    """Return `value` as numbers for the field. Raises WorkloadError that names the first invalid one."""
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
    """Return bool[requests]: which weights are allowed."""
    return (weights >= WEIGHT_BOUNDS[0]) & (weights <= WEIGHT_BOUNDS[1])


def validate(table: np.ndarray, name: str, known: int) -> None:
    """Raise WorkloadError for an invalid table. known: number of requests with known arrivals."""
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
    for field, bad, expected in rules:
        if bad.any():
            at = int(np.argmax(bad))
            raise WorkloadError(
                f"workload '{name}', request {at}: {field} is {table[field][at].item()}; it should be {expected}"
                + (f" ({int(bad.sum())} such requests)" if bad.sum() > 1 else "")
            )

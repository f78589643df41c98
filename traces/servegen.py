"""ServeGen's clients: the rate, burstiness and lengths of each client's requests in each window of a day.

Two tables make a trace, `NAME_client_rates` and `NAME_length_pdfs` (.parquet, in one folder). Times: `rate_per_s`,
`pattern` (Gamma or Weibull gaps) and the shape `param0` by client and window of 10 minutes. Lengths: the probabilities
of token counts by client, for windows of hours.
Source: alibaba/ServeGen, Apache-2.0 (Xiang et al., NSDI 2026).
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.inputs.workload import MAX_TOKENS
from servegym.traces import files
from servegym.traces.cells import Chunk
from servegym.traces.distributions import Stream, generator
from servegym.traces.trace import Trace

RATES = ("client", "window_start_s", "rate_per_s", "pattern", "param0")
PDFS = ("client", "window_start_s", "field", "lengths", "probs")
RATES_SUFFIX, PDFS_SUFFIX = "_client_rates", "_length_pdfs"
FIELDS = ("input_tokens", "output_tokens")
WINDOW_S = 600.0
MAX_REQUESTS = 10_000_000  # of a client in a window; a file with more is damaged


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A distribution of lengths: token counts, int32, and their cumulative probabilities, float64, both (counts,)."""

    tokens: np.ndarray
    ends: np.ndarray

    def draw(self, rng: np.random.Generator, requests: int) -> np.ndarray:
        return self.tokens[np.searchsorted(self.ends[:-1], rng.random(requests), "right")]


@dataclasses.dataclass(frozen=True)
class Tables:
    """The clients of a service.

    rates: columns of RATES as arrays of shape (rows,), in order of time, for clients that have lengths.
    windows_s: start of each window, increasing. lengths: by client and field, each table and the time from which it is
    valid. left_out: share of the requests whose clients have no lengths.
    """

    name: str
    rates: dict[str, np.ndarray]
    windows_s: np.ndarray
    lengths: dict[tuple[int, str], tuple[np.ndarray, list[Lengths]]]
    left_out: float
    provenance: dict[str, Any]

    def lengths_of(self, client: int, field: str, window_s: float) -> Lengths:
        """Find the table valid at `window_s`: the last one that starts at or before it, else the first."""
        starts_s, tables = self.lengths[client, field]
        return tables[max(int(np.searchsorted(starts_s, window_s, "right")) - 1, 0)]


def is_rate_table(path: Path) -> bool:
    """Whether a file is ServeGen's table of rates, by its columns."""
    return path.suffix == ".parquet" and path.is_file() and set(RATES) <= set(files.column_names(path))


def read_tables(path: Path) -> Tables:
    """Read the tables of a service from its file of rates and the file of lengths in the same folder.

    Raises WorkloadError for files that are missing, damaged, or hold anything else.
    """
    pdfs_path = path.with_name(path.name.replace(RATES_SUFFIX, PDFS_SUFFIX))
    if pdfs_path == path or not pdfs_path.is_file():
        raise WorkloadError(
            f"{path.name} needs its lengths in the same folder: NAME{RATES_SUFFIX} and NAME{PDFS_SUFFIX}.parquet"
        )
    # Times of modification are part of the cache's key: a changed file is read again.
    return _read_tables(path, pdfs_path, path.stat().st_mtime_ns, pdfs_path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read_tables(path: Path, pdfs_path: Path, *changed_ns: int) -> Tables:
    del changed_ns
    lengths = _read_lengths(pdfs_path)
    rates = _read_rates(path)
    known = np.isin(rates["client"], [client for client, _ in lengths])
    if not known.any():
        raise WorkloadError(f"{path.name}: no client has lengths in {pdfs_path.name}")
    return Tables(
        name=path.name.split(".")[0].removesuffix(RATES_SUFFIX),
        rates={name: column[known] for name, column in rates.items()},
        windows_s=np.unique(rates["window_start_s"][known]),
        lengths=lengths,
        left_out=float(rates["rate_per_s"][~known].sum() / rates["rate_per_s"].sum()),
        provenance={
            "file": path.name,
            "sha256": files.sha256(path),
            "lengths_file": pdfs_path.name,
            "lengths_sha256": files.sha256(pdfs_path),
            "format": "servegen",
            "source": "alibaba/ServeGen, Apache-2.0",
        },
    )


def generate(
    tables: Tables,
    requests: int,
    *,
    seed: int = 0,
    first_window: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
) -> Trace:
    """Draw the first requests from the start of a window on, with arrivals and clients.

    In a window a client sends rate x window requests, with gaps of its distribution, stretched to fill the window and
    rotated by a random phase, so that bursts do not all begin with the window. Requests over the token limits are left
    out. Raises WorkloadError if there are fewer requests up to the last window.
    """
    lengths_rng = generator(seed, Stream.LENGTHS)
    arrivals_rng = generator(seed, Stream.ARRIVALS)
    parts: list[dict[str, np.ndarray]] = []
    accepted = 0
    for window_s in tables.windows_s[first_window:]:
        part = _window(tables, float(window_s), lengths_rng, arrivals_rng)
        keep = np.ones(len(part["client"]), bool)
        if max_prompt_tokens is not None:
            keep &= part["prompt_tokens"] <= max_prompt_tokens
        if max_total_tokens is not None:
            keep &= part["prompt_tokens"] + part["output_tokens"] <= max_total_tokens
        parts.append({name: column[keep] for name, column in part.items()})
        accepted += int(keep.sum())
        if accepted >= requests:
            break
    if accepted < requests:
        raise WorkloadError(
            f"{tables.name} has {accepted} requests within the token limits from window {first_window} on, the last"
            f" of {len(tables.windows_s)}; {requests} are asked for"
        )
    columns = {name: np.concatenate([part[name] for part in parts])[:requests] for name in parts[0]}
    notes = [f"clients without lengths left out: {tables.left_out:.1%} of the requests"] * bool(tables.left_out)
    return Trace(
        name=tables.name,
        prompt_tokens=columns["prompt_tokens"],
        output_tokens=columns["output_tokens"],
        arrival_s=columns["arrival_s"] - float(tables.windows_s[first_window]),
        given={"client": columns["client"]},
        provenance={
            **tables.provenance,
            "rows": requests,
            "dropped_rows": 0,
            "notes": notes,
            "first_window": first_window,
            "first_window_start_s": float(tables.windows_s[first_window]),
        },
    )


def _window(
    tables: Tables, window_s: float, lengths_rng: np.random.Generator, arrivals_rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw all requests of a window, in order of time: arrival_s, prompt_tokens, output_tokens, client."""
    here = tables.rates["window_start_s"] == window_s
    drawn: list[dict[str, np.ndarray]] = []
    for client, rate_per_s, pattern, shape in zip(
        *(tables.rates[name][here] for name in ("client", "rate_per_s", "pattern", "param0")), strict=True
    ):
        count = round(rate_per_s * WINDOW_S)
        gaps = arrivals_rng.gamma(shape, size=count) if pattern == "Gamma" else arrivals_rng.weibull(shape, count)
        phase = arrivals_rng.random()
        places = np.arange(1, count + 1) / count if gaps.sum() == 0 else np.cumsum(gaps) / gaps.sum()
        prompt, output = (tables.lengths_of(int(client), field, window_s).draw(lengths_rng, count) for field in FIELDS)
        drawn.append(
            {
                "arrival_s": window_s + WINDOW_S * ((places + phase) % 1),
                "prompt_tokens": prompt,
                "output_tokens": output,
                "client": np.full(count, client, "i4"),
            }
        )
    together = {name: np.concatenate([part[name] for part in drawn]) for name in drawn[0]}
    order = np.argsort(together["arrival_s"], kind="stable")
    return {name: column[order] for name, column in together.items()}


def _read_rates(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of RATES, rows in order of time."""
    parts = []
    for chunk in files.chunks(path, RATES):
        pattern = chunk.text("pattern")
        chunk.check("pattern", ~np.isin(pattern, ["Gamma", "Weibull"]), "Gamma or Weibull")
        rate_per_s = chunk.positive("rate_per_s", "requests per second, above 0 and finite", finite=True)
        chunk.check("rate_per_s", rate_per_s * WINDOW_S > MAX_REQUESTS, f"at most {MAX_REQUESTS / WINDOW_S:g}")
        parts.append(
            {
                "client": chunk.codes("client"),
                "window_start_s": chunk.times("window_start_s", "seconds"),
                "rate_per_s": rate_per_s,
                "pattern": pattern,
                "param0": chunk.positive("param0", "a shape above 0", finite=True),
            }
        )
    if not parts:
        raise WorkloadError(f"{path.name} has no rows: a service has at least one client")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in RATES}
    order = np.argsort(columns["window_start_s"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def _read_lengths(path: Path) -> dict[tuple[int, str], tuple[np.ndarray, list[Lengths]]]:
    """Read the tables of lengths by client and field, in order of time."""
    found: dict[tuple[int, str], list[tuple[float, Lengths]]] = {}
    for chunk in files.chunks(path, PDFS):
        clients, starts_s = chunk.codes("client"), chunk.times("window_start_s", "seconds")
        for row, field in enumerate(chunk.text("field")):
            if field in FIELDS:
                found.setdefault((int(clients[row]), field), []).append((starts_s[row], _lengths(chunk, row)))
    lengths = {}
    for key, tables in found.items():
        tables.sort(key=lambda table: table[0])
        lengths[key] = np.array([start_s for start_s, _ in tables]), [table for _, table in tables]
    return {key: value for key, value in lengths.items() if all((key[0], field) in lengths for field in FIELDS)}


def _lengths(chunk: Chunk, row: int) -> Lengths:
    """Return the table in a row. Counts of 0 (failed requests) have no share."""
    this_row = np.arange(len(chunk)) == row
    try:
        tokens = np.asarray(chunk.frame["lengths"].iloc[row], "f8")
        shares = np.asarray(chunk.frame["probs"].iloc[row], "f8")
        sound = tokens.ndim == 1 and tokens.shape == shares.shape and (shares >= 0).all() and np.isfinite(shares).all()
    except (TypeError, ValueError):
        sound = False
    right = f"token counts up to {MAX_TOKENS} with a probability of 0 or more each, not all of 0 tokens"
    chunk.check("lengths", this_row & (not sound), right)
    shares = np.where(tokens > 0, shares, 0)
    sound = (tokens == np.floor(tokens)).all() and tokens.max(initial=0) <= MAX_TOKENS and shares.sum() > 0
    chunk.check("lengths", this_row & (not sound), right)
    ends = np.cumsum(shares) / shares.sum()
    return Lengths(tokens.astype("i4"), ends)

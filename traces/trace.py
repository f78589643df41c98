"""A trace: requests from a file or a generator, before a rate and a recipe turn them into a workload."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.simulator.features.session_dependencies import SessionDependencies


@dataclasses.dataclass(frozen=True)
class PrefixBlocks:
    """The prefix blocks of each request: those of request i are `ids[offsets[i]:offsets[i + 1]]`.

    offsets: int64, one more than requests, from 0. ids: int64; equal ids after equal ids are equal blocks of tokens.
    block_tokens: prompt tokens in a block (the last of a prompt may have fewer); None: not known.
    """

    offsets: np.ndarray
    ids: np.ndarray
    block_tokens: int | None = None

    def take(self, rows: np.ndarray) -> PrefixBlocks:
        """Select the blocks of these requests, in the order of `rows`."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.r_[0, np.cumsum(counts)]
        moved = np.repeat(self.offsets[rows] - offsets[:-1], counts)  # distance of each block from its new place
        return PrefixBlocks(offsets, self.ids[np.arange(offsets[-1]) + moved], self.block_tokens)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Requests in the order of the file, or as drawn.

    prompt_tokens, output_tokens: int32, one a request, 1 or more.
    arrival_s: float64, not decreasing, 0 or more; None where the trace has lengths only. Of sessions it says when they
        begin: NaN for requests that follow another.
    given: other columns of `WORKLOAD` that the trace has itself; they win over a recipe's.
    labels: for a column of `given` that was text, the text of code 0, 1, ...
    prefix_blocks: shared prefixes, where the trace names them.
    turns: which request follows which, where any does. Each follows one above it, and a session's are in a row.
    provenance: where it came from, for the record beside results: at least format and rows.
    ids: what each request is called in the file, an object array of texts; None: it does not say.
    """

    name: str
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    arrival_s: np.ndarray | None = None
    given: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    prefix_blocks: PrefixBlocks | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    turns: SessionDependencies | None = None
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def take(self, rows: np.ndarray) -> Trace:
        """Select the requests numbered `rows` (integers), in that order."""
        return dataclasses.replace(
            self,
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            arrival_s=None if self.arrival_s is None else self.arrival_s[rows],
            given={field: column[rows] for field, column in self.given.items()},
            prefix_blocks=None if self.prefix_blocks is None else self.prefix_blocks.take(rows),
            turns=None if self.turns is None else self.turns.take(rows),
            ids=None if self.ids is None else self.ids[rows],
        )

    @property
    def begins(self) -> np.ndarray:
        """bool[requests]: which follow none."""
        return np.ones(len(self), bool) if self.turns is None else self.turns.after < 0

    @property
    def rate_per_s(self) -> float | None:
        """Mean requests per second by its own times; of sessions their rate times their mean length. None without
        times, and if all requests arrive at once."""
        if self.arrival_s is None:
            return None
        begin_s = self.arrival_s[self.begins]
        span_s = float(begin_s[-1] - begin_s[0])
        return (len(begin_s) - 1) / span_s * len(self) / len(begin_s) if span_s > 0 else None

    def alone(self) -> Trace:
        """Copy the requests as if none followed another (a session keeps no times)."""
        return self if self.turns is None else dataclasses.replace(self, turns=None, arrival_s=None)

    def noted(self, **entries: Any) -> Trace:
        """Copy the requests with more entries in the provenance."""
        return dataclasses.replace(self, provenance={**self.provenance, **entries})

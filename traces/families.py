"""Families: kinds of requests that can be drawn without a trace file.

To add one, register a `Family` here, in a file that imports this one, or as a table in `quantiles/`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.distributions import Stream, generator
from servegym.traces.registry import Registry
from servegym.traces.trace import Trace

LEAST_ACCEPTED = 1e-4  # token limits that accept a smaller share of the draws are an error
DRAWS_A_ROUND = 65_536


@dataclasses.dataclass(frozen=True)
class Family:
    """Requests as a function of uniform random numbers.

    uniforms: random numbers that a request takes. columns: maps numbers in [0, 1) of shape (n, uniforms) to int32
    prompt_tokens and output_tokens of shape (n,), and possibly other columns of `WORKLOAD`.
    context_tokens: most tokens of prompt and output together; None: no limit.
    labels: as in `Trace`. origin: source of its figures, for the provenance.
    """

    uniforms: int
    columns: Callable[[np.ndarray], dict[str, np.ndarray]]
    origin: Mapping[str, Any]
    context_tokens: int | None = None
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def draw(self, family: str, requests: int, seed: int, most_prompt: float, most_total: float) -> Trace:
        """Draw requests as `generate` does."""
        most_total = min(most_total, np.inf if self.context_tokens is None else self.context_tokens)
        rng = generator(seed, Stream.LENGTHS)
        rounds: list[dict[str, np.ndarray]] = []
        accepted = 0
        while accepted < requests:
            drawn = self.columns(rng.random((DRAWS_A_ROUND, self.uniforms)))
            prompt, total = drawn["prompt_tokens"], drawn["prompt_tokens"] + drawn["output_tokens"]
            keep = (prompt <= most_prompt) & (total <= most_total)
            rounds.append({name: column[keep] for name, column in drawn.items()})
            accepted += int(keep.sum())
            if accepted < LEAST_ACCEPTED * DRAWS_A_ROUND * len(rounds):
                raise WorkloadError(
                    f"{family}: fewer than 1 in {1 / LEAST_ACCEPTED:g} requests have up to {most_prompt:g} prompt"
                    f" tokens and {most_total:g} in all; of {DRAWS_A_ROUND} the shortest prompt has {prompt.min()}"
                )
        columns = {name: np.concatenate([part[name] for part in rounds])[:requests] for name in rounds[0]}
        return Trace(
            name=family,
            prompt_tokens=columns.pop("prompt_tokens"),
            output_tokens=columns.pop("output_tokens"),
            given=columns,
            labels=self.labels,
            provenance=drawn_provenance(family, requests, self.origin),
        )


def drawn_provenance(family: str, requests: int, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Make the provenance of a drawn trace. origin: entries about the source of the family's figures."""
    return {"format": "generated", "rows": requests, "dropped_rows": 0, "notes": [], "family": family, **origin}


class Drawn(Protocol):
    """The interface of families: requests that can be drawn."""

    def draw(self, family: str, requests: int, seed: int, most_prompt: float, most_total: float) -> Trace: ...


FAMILIES: Registry[Drawn] = Registry("family")


@functools.lru_cache(maxsize=1)  # the requests of a seed are drawn again at each rate
def generate(
    family: str,
    requests: int,
    *,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
) -> Trace:
    """Draw requests of a family: lengths and types, without arrivals.

    max_prompt_tokens, max_total_tokens: draws with a longer prompt, or prompt and output, are drawn again.
    Fewer requests are the first of more. Equal calls return the same trace, so its arrays are read-only. Raises
    WorkloadError for an unknown family, and for limits that (almost) no request of the family satisfies.
    """
    most_prompt = np.inf if max_prompt_tokens is None else max_prompt_tokens
    most_total = np.inf if max_total_tokens is None else max_total_tokens
    trace = FAMILIES[family].draw(family, requests, seed, most_prompt, most_total)
    for column in (trace.prompt_tokens, trace.output_tokens, *trace.given.values()):
        column.flags.writeable = False
    return trace


@dataclasses.dataclass(frozen=True)
class ByTurns:
    """Requests of several families by turns, `requests` of each at a time. Requests say their family as application."""

    families: tuple[str, ...]
    requests: int

    def draw(self, family: str, requests: int, seed: int, most_prompt: float, most_total: float) -> Trace:
        """Draw requests as `generate` does."""
        drawn = [FAMILIES[name].draw(name, requests, seed, most_prompt, most_total) for name in self.families]
        sources = ", then ".join(f"{trace.name} ({trace.provenance['source']})" for trace in drawn)
        turn = np.arange(requests) // self.requests % len(drawn)
        return Trace(
            name=family,
            prompt_tokens=np.choose(turn, [trace.prompt_tokens for trace in drawn]),
            output_tokens=np.choose(turn, [trace.output_tokens for trace in drawn]),
            given={"application": turn.astype("i4")},
            labels={"application": self.families},
            provenance=drawn_provenance(family, requests, {"source": f"{self.requests} requests by turns: {sources}"}),
        )


FAMILIES.register("code-and-writing")(ByTurns(("azure-code", "uniform-512-512"), 3000))

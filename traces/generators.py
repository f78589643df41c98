"""Requests drawn from the quantile tables in `quantiles/`: a public trace's lengths without its file.

A table holds the quantiles of prompt lengths, and those of output lengths in each tenth of the prompts by
length. A request draws two uniform numbers: the first gives its prompt (linear between quantiles) and so
its tenth, the second its output within that tenth. That keeps both distributions and how outputs
depend on prompts, also where that is no matter of more with more (the rank correlations are below 0.08).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from servegym.simulator.errors import WorkloadError
from servegym.traces import randomness
from servegym.traces.registry import unknown_name
from servegym.traces.trace import Trace

LEAST_ACCEPTED = 1e-4  # share of draws within the token limits below which they are refused
DRAWS_A_ROUND = 65_536


@dataclasses.dataclass(frozen=True)
class QuantileTable:
    """Lengths of a family, float64: levels and prompt_tokens (levels,), output_tokens (bands, levels).

    context_tokens: most of prompt and output together; None: no such limit.
    """

    levels: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    context_tokens: int | None
    origin: dict[str, Any]

    def lengths(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and output tokens, int32 of shape (n,), for `uniform` numbers in [0, 1) of shape (n, 2)."""
        bands = len(self.output_tokens)
        band = (uniform[:, 0] * bands).astype("i8")
        prompt = np.interp(uniform[:, 0], self.levels, self.prompt_tokens)
        output = np.empty(len(uniform))
        for index in range(bands):
            here = band == index
            output[here] = np.interp(uniform[here, 1], self.levels, self.output_tokens[index])
        return np.rint(prompt).astype("i4"), np.rint(output).astype("i4")


def families() -> list[str]:
    """The families that can be generated, sorted."""
    folder = resources.files("servegym.traces.quantiles")
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


@functools.cache
def quantile_table(family: str) -> QuantileTable:
    """The table of a family. Raises WorkloadError for a name that is none."""
    if family not in families():
        raise WorkloadError(unknown_name("family", family, families()))
    content = json.loads((resources.files("servegym.traces.quantiles") / f"{family}.json").read_text("utf-8"))
    return QuantileTable(
        levels=np.array(content["levels"]),
        prompt_tokens=np.array(content["prompt_tokens"], "f8"),
        output_tokens=np.array(content["output_tokens_by_prompt_band"], "f8"),
        context_tokens=content["context_tokens"],
        origin={key: content[key] for key in ("family", "source", "commit", "licence", "changes")},
    )


def generate(
    family: str,
    requests: int,
    *,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    max_total_tokens: int | None = None,
) -> Trace:
    """Draw requests of a family: lengths, without arrivals.

    max_prompt_tokens, max_total_tokens: draws with a longer prompt, or prompt and output, are drawn again.
    The first of more requests are the same. Raises WorkloadError for an unknown family, and for limits
    that (almost) no request of the family keeps.
    """
    table = quantile_table(family)
    most_prompt = np.inf if max_prompt_tokens is None else max_prompt_tokens
    most_total = min(np.inf if limit is None else limit for limit in (max_total_tokens, table.context_tokens))
    rng = randomness.generator(seed, randomness.Stream.LENGTHS)
    prompts, outputs, accepted, drawn = [], [], 0, 0
    while accepted < requests:
        prompt, output = table.lengths(rng.random((DRAWS_A_ROUND, 2)))
        keep = (prompt <= most_prompt) & (prompt + output <= most_total)
        prompts.append(prompt[keep])
        outputs.append(output[keep])
        accepted += int(keep.sum())
        drawn += DRAWS_A_ROUND
        if accepted < LEAST_ACCEPTED * drawn:
            raise WorkloadError(
                f"{family}: fewer than 1 in {1 / LEAST_ACCEPTED:g} requests have up to {most_prompt:g} prompt"
                f" tokens and {most_total:g} in all; the shortest prompt has {table.prompt_tokens[0]:g}"
            )
    return Trace(
        name=family,
        prompt_tokens=np.concatenate(prompts)[:requests],
        output_tokens=np.concatenate(outputs)[:requests],
        provenance={"format": "generated", "rows": requests, "dropped_rows": 0, "notes": [], **table.origin},
    )

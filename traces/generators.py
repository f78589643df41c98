"""Families drawn from the quantile tables in `quantiles/`: a public trace's lengths without its file.

A table has the quantiles of prompt lengths, and for each tenth of the prompts by length those of the output lengths. A
request draws two uniform numbers: the first gives its prompt (linear between quantiles) and with it the tenth, the
second its output within that tenth. That keeps both distributions and the dependence of outputs on prompts, which is
not monotonic (the rank correlations are below 0.08).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from servegym.errors import WorkloadError, unknown_name
from servegym.traces.families import FAMILIES, Family


@dataclasses.dataclass(frozen=True)
class QuantileTable:
    """Lengths of a family, float64: levels and prompt_tokens (levels,), output_tokens (bands, levels).

    context_tokens: most tokens of prompt and output together; None: no limit.
    """

    levels: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    context_tokens: int | None
    origin: dict[str, Any]

    def lengths(self, uniform: np.ndarray) -> dict[str, np.ndarray]:
        """Prompt and output tokens, int32 of shape (n,), for `uniform` numbers in [0, 1) of shape (n, 2)."""
        bands = len(self.output_tokens)
        band = (uniform[:, 0] * bands).astype("i8")
        prompt = np.interp(uniform[:, 0], self.levels, self.prompt_tokens)
        output = np.empty(len(uniform))
        for index in range(bands):
            here = band == index
            output[here] = np.interp(uniform[here, 1], self.levels, self.output_tokens[index])
        return {"prompt_tokens": np.rint(prompt).astype("i4"), "output_tokens": np.rint(output).astype("i4")}


def tables() -> list[str]:
    """The families that have a quantile table, sorted."""
    names = (file.name.partition(".") for file in resources.files("servegym.traces.quantiles").iterdir())
    return sorted(name for name, _, ending in names if ending == "json")


@functools.cache
def quantile_table(family: str) -> QuantileTable:
    """The table of a family. Raises WorkloadError for an unknown name."""
    if family not in tables():
        raise WorkloadError(unknown_name("quantile table", family, tables()))
    content = json.loads((resources.files("servegym.traces.quantiles") / f"{family}.json").read_text("utf-8"))
    return QuantileTable(
        levels=np.array(content["levels"]),
        prompt_tokens=np.array(content["prompt_tokens"], "f8"),
        output_tokens=np.array(content["output_tokens_by_prompt_band"], "f8"),
        context_tokens=content["context_tokens"],
        origin={key: content[key] for key in ("source", "commit", "licence", "changes")},
    )


def _register(family: str) -> None:
    table = quantile_table(family)
    FAMILIES.register(family)(Family(2, table.lengths, table.origin, table.context_tokens))


for _family in tables():
    _register(_family)

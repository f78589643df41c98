"""Registers families drawn from the tables in `quantiles/`: a public trace's lengths without its file.

A quantile table has the quantiles of prompt lengths, and for each tenth of the prompts by length those of the output
lengths. A request draws two uniform numbers: the first gives its prompt (linear between quantiles) and with it the
tenth, the second its output within that tenth. That keeps both distributions and the dependence of outputs on prompts,
which is not monotonic (the rank correlations are below 0.08).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from servegym.errors import WorkloadError, unknown_name
from servegym.traces import quantiles
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
        """Return prompt and output tokens, int32 of shape (n,), for `uniform` numbers in [0, 1) of shape (n, 2)."""
        bands = len(self.output_tokens)
        band = (uniform[:, 0] * bands).astype("i8")
        prompt = np.interp(uniform[:, 0], self.levels, self.prompt_tokens)
        output = np.empty(len(uniform))
        for index in range(bands):
            here = band == index
            output[here] = np.interp(uniform[here, 1], self.levels, self.output_tokens[index])
        return {"prompt_tokens": np.rint(prompt).astype("i4"), "output_tokens": np.rint(output).astype("i4")}


def tables() -> list[str]:
    """List the families that have a quantile table, sorted."""
    return quantiles.families_with(quantiles.LENGTHS)


@functools.cache
def quantile_table(family: str) -> QuantileTable:
    """Read the table of a family. Raises WorkloadError for an unknown name."""
    if family not in tables():
        raise WorkloadError(unknown_name("quantile table", family, tables()))
    content = quantiles.table_of(family, quantiles.LENGTHS)
    return QuantileTable(
        levels=np.array(content["levels"]),
        prompt_tokens=np.array(content["prompt_tokens"], "f8"),
        output_tokens=np.array(content["output_tokens_by_prompt_band"], "f8"),
        context_tokens=content["context_tokens"],
        origin=quantiles.origin_of(content),
    )


def register_quantiles(family: str) -> None:
    """Register the family of a quantile table."""
    table = quantile_table(family)
    FAMILIES.register(family)(Family(2, table.lengths, table.origin, table.context_tokens))


def register_clients(family: str) -> None:
    """Register the family of a table of clients, each with its share of the requests and its own lengths.

    A request draws three uniform numbers: for its client, its prompt and its output (independent of each other).
    """
    content = quantiles.table_of(family, quantiles.CLIENTS)
    levels, clients = np.array(content["levels"]), content["clients"]
    numbers = np.array([client["client"] for client in clients], "i4")
    ends = np.cumsum([client["share"] for client in clients])

    def columns(level: np.ndarray) -> dict[str, np.ndarray]:
        which = np.searchsorted(ends[:-1] / ends[-1], level[:, 0], "right")
        lengths = np.empty((len(level), 2), "i4")
        for index, client in enumerate(clients):
            here = which == index
            for column, field in enumerate(("prompt_tokens", "output_tokens")):
                lengths[here, column] = np.rint(np.interp(level[here, column + 1], levels, client[field]))
        return {"prompt_tokens": lengths[:, 0], "output_tokens": lengths[:, 1], "client": numbers[which]}

    FAMILIES.register(family)(Family(3, columns, quantiles.origin_of(content)))


for _family in tables():
    register_quantiles(_family)
for _family in quantiles.families_with(quantiles.CLIENTS):
    register_clients(_family)

"""Families of many clients, each with its share of the requests and its own lengths, from `quantiles/*.clients.json`.

A request draws three uniform numbers: for its client, its prompt and its output (independent of each other).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np

from servegym.traces.families import FAMILIES, Family

ENDING = ".clients.json"


def client_tables() -> list[str]:
    """The families that have a table of clients, sorted."""
    folder = resources.files("servegym.traces.quantiles")
    return sorted(file.name.removesuffix(ENDING) for file in folder.iterdir() if file.name.endswith(ENDING))


def client_table(family: str) -> dict[str, Any]:
    """The table of a family: levels, and for each client its number, share, and prompt_tokens and output_tokens at the
    levels."""
    return json.loads((resources.files("servegym.traces.quantiles") / f"{family}{ENDING}").read_text("utf-8"))


def _register(family: str) -> None:
    content = client_table(family)
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

    origin = {key: content[key] for key in ("source", "commit", "licence", "changes")}
    FAMILIES.register(family)(Family(3, columns, origin))


for _family in client_tables():
    _register(_family)

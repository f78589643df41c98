"""A digest of numbers, whatever they are called: of tables, observations, decisions."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from servegym.simulator.runs.results import Result


def of_values(values: Iterable[Any]) -> str:
    """20 hexadecimal digits of the SHA-256 of numbers, texts and arrays of them, in their order.

    Of each the shape and all bytes count, not its type: whole numbers as int64, others as float64.
    """
    digest = hashlib.sha256()
    for value in values:
        array = _as_numbers(np.asarray(value))
        digest.update(f"{array.shape}{array.dtype.kind}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:20]


def of_result(result: Result) -> str:
    """Digest of a run's tables: every column of every request, engine and event of the timeline, in order.

    What columns are called does not count, so that they can be renamed.
    """
    tables = (result.requests, result.engines, result.timeline)
    return of_values(table[column].to_numpy() for table in tables for column in table)


def _as_numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biu":
        return array.astype("i8")
    if array.dtype.kind == "f":
        return array.astype("f8")
    # Words: which are the same, numbered as they come; so they can be renamed too.
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(word, len(seen)) for word in array.ravel().tolist()], "i8")

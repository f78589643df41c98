"""The arrays and records of a run. A new field is declared here with its unit; nothing here decides anything.

`record` makes a structured dtype with attribute access; types.py has all of them.
"""

from typing import Any

import numpy as np


def record(fields: list[tuple[str, Any]], lines_of: int = 1) -> np.dtype:
    """An aligned dtype whose scalars give attribute access with and without compilation; its size is a multiple of
    `lines_of` bytes."""
    dtype = np.dtype(fields, align=True)
    if dtype.fields and dtype.itemsize % lines_of:
        names = list(dtype.fields)
        formats, offsets = zip(*(dtype.fields[name][:2] for name in names), strict=True)
        size = -(-dtype.itemsize // lines_of) * lines_of
        dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size}, align=True)
    return np.dtype((np.record, dtype))


def with_alias(dtype: np.dtype, name: str, field: str) -> np.dtype:
    """A record with another name for a field."""
    assert dtype.fields is not None
    fields = {**dtype.fields, name: dtype.fields[field]}
    formats, offsets = zip(*(one[:2] for one in fields.values()), strict=True)
    layout: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    return np.dtype((np.record, np.dtype(layout, align=True)))

"""The arrays and records of a run. Declare a new field here, with its unit; nothing here decides anything.

`record` makes a structured dtype with attribute access; types.py re-exports all record types.
"""

from typing import Any

import numpy as np


def record(fields: list[Any], lines_of: int = 1) -> np.dtype:
    """Return an aligned dtype whose scalars have attributes, compiled or not.

    Its size is a multiple of `lines_of` bytes, so that rows start at a cache line.
    """
    dtype = np.dtype(fields, align=True)
    if dtype.fields and dtype.itemsize % lines_of:
        names = list(dtype.fields)
        formats, offsets = zip(*(dtype.fields[name][:2] for name in names), strict=True)
        size = -(-dtype.itemsize // lines_of) * lines_of
        dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size}, align=True)
    return np.dtype((np.record, dtype))


def with_alias(dtype: np.dtype, name: str, field: str) -> np.dtype:
    """Return the record type with a second name for the memory of a field."""
    assert dtype.fields is not None
    fields = {**dtype.fields, name: dtype.fields[field]}
    formats, offsets = zip(*(one[:2] for one in fields.values()), strict=True)
    layout: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    return np.dtype((np.record, np.dtype(layout, align=True)))

"""Find the file that could not be written: when a disk is full, the operating system names none."""

from __future__ import annotations

import io
import traceback
from pathlib import Path


def file_of(error: OSError) -> str:
    """The file that an error is about, if it can be determined."""
    if error.filename:
        return str(error.filename)
    frames = [frame.f_locals.values() for frame, _ in traceback.walk_tb(error.__traceback__)]
    for kind in (io.IOBase, Path):  # a file that is being written; else what the innermost function was to write
        for values in reversed(frames):
            for value in values:
                name = getattr(value, "name", None) if isinstance(value, io.IOBase) else value
                if isinstance(value, kind) and isinstance(name, str | Path):
                    return str(name)
    return ""

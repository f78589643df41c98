"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` for a file or folder that takes its place, on the disk, when the block has ended.

    If the block fails, what was there stays. Threads, processes and machines may replace one file at once.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
    try:
        yield draft
        if draft.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a folder is not replaced by another
        else:
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
        raise

"""Numba's cache on disk, with a checksum behind each file: what is damaged is compiled again.

Numba trusts what it reads: an index cut short is an exception in every process, and a flipped bit in machine code
ends it in an assertion of LLVM's, or runs. Files are written beside their place and then moved there, as Numba does.
"""

from __future__ import annotations

import contextlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

CHECKSUM_BYTES = 4  # CRC-32: of the largest kernel in 10 ms, where SHA-256 takes 80
_told: set[str] = set()


class CheckedFiles(IndexDataCacheFile):
    """The index and the kernels of one function, each with its checksum at the end, which pickle does not read."""

    def _load_index(self) -> dict[Any, str]:
        return super()._load_index() if is_whole(Path(self._index_path)) else {}

    def _load_data(self, name: str) -> Any:
        path = Path(self._data_path(name))
        if not is_whole(path):
            raise OSError(f"{path} is damaged")  # as one that is gone: Numba compiles, and writes it anew
        return super()._load_data(name)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        written = content.getvalue()
        with super()._open_for_write(filepath) as file:
            file.write(written + checksum(written))


class CheckedCache(FunctionCache):
    """A cache of one function; if nothing can be written to it, that is said and the kernel is used all the same."""

    def __init__(self, function: Callable):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = CheckedFiles(self._cache_path, self._impl.filename_base, locator.get_source_stamp())

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            tell_unwritable(self._cache_path, error.strerror or str(error))


def use_cache(dispatcher: Any, directory: Path) -> None:
    """Have a dispatcher of Numba's read its kernel from the disk, and keep it there. directory: Numba's CACHE_DIR."""
    try:
        dispatcher._cache = CheckedCache(dispatcher.py_func)
    except (OSError, RuntimeError) as error:  # RuntimeError: Numba has found no folder that it can write to
        tell_unwritable(str(directory), getattr(error, "strerror", None) or "the folder cannot be written to")


def checksum(content: bytes | memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")


def is_whole(path: Path) -> bool:
    """Whether a file ends with the checksum of what is before; False also where there is none."""
    try:
        content = memoryview(path.read_bytes())
    except OSError:
        return False
    return len(content) > CHECKSUM_BYTES and checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:]


def tell_unwritable(directory: str, why: str) -> None:
    """Say once why kernels are not kept."""
    if why not in _told:
        _told.add(why)
        print(
            f"servegym: compiled kernels cannot be kept in {directory}: {why}; each process compiles its own until "
            "there is room, or SERVEGYM_CACHE names another folder",
            file=sys.stderr,
        )

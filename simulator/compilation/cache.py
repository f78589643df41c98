"""Compiled kernels on disk: those shipped in the wheel, and those compiled on this machine.

A kernel is one file, named after all that its machine code depends on. It has the machine code and the names of what is
called in it, compressed, with a checksum, as damaged code could crash the process. Numba's own cache does not do: it
names files after the path of the sources and the model of the processor, so they are of no use on another machine, and
it loads Numba before it reads anything.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import platform
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from llvmlite import binding

from servegym.simulator.compilation.loading import Code
from servegym.simulator.compilation.settings import setting
from servegym.simulator.compilation.versions import versions

GZIP = 31  # zlib's wbits for gzip, which has a checksum
SUFFIX = ".kernel"
SHIPPED = Path(__file__).parents[2] / "shipped_kernels"  # in a wheel that has some (`make wheel`)
# Levels that a wheel's kernels are compiled for, by machine, best first: LLVM's name of a processor, and the features
# that its code may use, named as in LLVM (x86-64) or as in Linux (aarch64).
V2 = frozenset({"cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"})
V3 = V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
V8 = frozenset({"fp", "asimd"})
N1 = V8 | {"aes", "pmull", "sha1", "sha2", "crc32", "atomics", "asimdrdm", "asimdhp", "fphp", "asimddp", "lrcpc"}
LEVELS = {
    "x86_64": {"x86-64-v3": V3, "x86-64-v2": V2},
    "aarch64": {"neoverse-n1": N1, "generic": V8},
}
CPUINFO = Path("/proc/cpuinfo")
_warned: set[str] = set()


class Target(NamedTuple):
    """The target of machine code, Numba's `magic_tuple`."""

    triple: str
    processor: str
    features: str


class KernelFiles:
    """The files of a kernel.

    digest: of its sources. stamp: what else its code depends on.
    """

    def __init__(self, digest: str, stamp: str):
        self.digest, self.stamp, self.directory = digest, stamp, cache_root() / digest

    def read(self) -> Code | None:
        """Return the code of a shipped file, else of one that was compiled here; None if there is none."""
        own = target_here()
        shipped = [SHIPPED / self.name(Target(own.triple, level, "")) for level in levels_here()]
        for path in (*shipped, self.directory / self.name(own)):
            content = read_whole(path)
            if content is not None:
                return Code(*pickle.loads(content))
        return None

    def write(self, code: Code) -> None:
        """Keep code that was compiled here; print once if that is not possible."""
        try:
            write_whole(self.directory / self.name(target_here()), pickle.dumps(tuple(code)))
        except OSError as error:
            tell_unwritable(self.directory, error.strerror or str(error))

    def name(self, target: Target) -> str:
        """Return the name of its file for a target."""
        return file_name(self.digest, self.stamp, target)


def target_here() -> Target:
    """Return what Numba compiles for: this processor, unless its settings name another."""
    name, features = setting("CPU_NAME"), setting("CPU_FEATURES")
    return _target(name, features)


@functools.cache
def _target(name: str | None, features: str | None) -> Target:
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    return Target(binding.get_process_triple(), name or binding.get_host_cpu_name(), features)


def file_name(digest: str, stamp: str, target: Target) -> str:
    """Return the name of a kernel's file, from the digest of its sources and all else that the code depends on."""
    rest = hashlib.sha256(repr((versions(), stamp, *target)).encode())
    return f"{digest}-{rest.hexdigest()[:12]}{SUFFIX}"


@functools.cache
def levels_here() -> tuple[str, ...]:
    """Return the levels whose shipped kernels run here; none if Numba is configured for another processor."""
    if setting("CPU_NAME") is not None or setting("CPU_FEATURES") is not None or not SHIPPED.is_dir():
        return ()
    machine = platform.machine()
    return levels_of(machine, features_of(machine)) if machine in LEVELS else ()


def features_of(machine: str) -> set[str]:
    """Return the features of the processor here, with the names of LEVELS."""
    if machine == "x86_64":
        return {name for name, is_there in binding.get_host_cpu_features().items() if is_there}
    # Of aarch64 LLVM reports only half of the features; Linux lists all, on a line for each core.
    lines = [line.partition(":") for line in CPUINFO.read_text().splitlines()] if CPUINFO.exists() else []
    cores = [set(names.split()) for key, _, names in lines if key.strip() == "Features"]
    return set.intersection(*cores) if cores else set()


def levels_of(machine: str, features: Collection[str]) -> tuple[str, ...]:
    """Return the levels of a kind of machine that a processor with these features has, best first."""
    return tuple(level for level, needed in LEVELS[machine].items() if needed <= set(features))


def cache_root() -> Path:
    """Return the folder of compiled kernels: $SERVEGYM_CACHE, else the user's cache folder, else a temporary one."""
    root = os.environ.get("SERVEGYM_CACHE")
    if root is None:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "servegym")
    path = Path(root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return Path(tempfile.gettempdir()) / f"servegym-{os.getuid()}"


def read_whole(path: Path) -> bytes | None:
    """Return the content of a file by `write_whole`; None if it is damaged or missing."""
    try:
        return zlib.decompress(path.read_bytes(), wbits=GZIP)
    except (OSError, zlib.error):
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, compressed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        beside.write_bytes(zlib.compress(content, wbits=GZIP))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def file_stamp(function: Callable) -> str:
    """Return path and digest of the file of a function outside this package, as compiled code contains its lines."""
    path = Path(function.__code__.co_filename)
    try:
        return f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return str(path)


def tell_unwritable(directory: Path, why: str) -> None:
    """Print once why compiled kernels cannot be kept."""
    if why not in _warned:
        _warned.add(why)
        print(
            f"servegym: compiled kernels cannot be kept in {directory}: {why}; each process compiles its own until "
            "there is room, or SERVEGYM_CACHE names another folder",
            file=sys.stderr,
        )

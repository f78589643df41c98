"""Compiled kernels on disk: those shipped in the wheel, and those compiled on this machine.

A kernel is one file, named after all that its machine code depends on. It has Numba's pickled function without what is
needed only to inline it, compressed to an eighth, with a checksum, as damaged code could crash the process. Numba's own
cache does not do: it names files after the path of the sources and the model of the processor, so they are of no use on
another machine, and it loads Numba's compiler before it reads anything.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import platform
import re
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
from llvmlite import binding
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import _nrt_python, rtsys  # type: ignore[attr-defined]
from numba.core.serialize import dumps

GZIP = 31  # zlib's wbits for gzip, which has a checksum
SUFFIX = ".kernel"
RUNTIME = b"NRT_"  # prefix of functions of Numba's runtime, as in the table of symbols
NAME_OF_RUNTIME = re.compile(rb"\0(NRT_\w+)")
INSIDE = {"NRT_incref", "NRT_decref"}
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
_config: Any = numba.config
_warned: set[str] = set()


class Target(NamedTuple):
    """The target of machine code, Numba's `magic_tuple`."""

    triple: str
    processor: str
    features: str


class KernelFiles(NullCache):
    """The cache files of a kernel, as a Numba cache.

    digest: of its sources. stamp: what else its code depends on. directory: of files that are compiled here.
    """

    def __init__(self, digest: str, stamp: str, directory: Path):
        self.digest, self.stamp, self.directory = digest, stamp, directory

    @property
    def cache_path(self) -> str:
        return str(self.directory)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        own = Target(*target_context.codegen().magic_tuple())
        shipped = [SHIPPED / self.name(Target(own.triple, level, "")) for level in levels_here()]
        for path in (*shipped, self.directory / self.name(own)):
            content = read_whole(path)
            if content is not None:
                if RUNTIME in content:
                    make_runtime_ready(content, target_context)
                return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        if cres.library.has_dynamic_globals:
            return  # it contains addresses of this process
        path = self.directory / self.name(Target(*cres.target_context.codegen().magic_tuple()))
        try:
            write_whole(path, dumps(machine_code_of(cres._reduce())))
        except OSError as error:
            tell_unwritable(self.directory, error.strerror or str(error))

    def name(self, target: Target) -> str:
        """Return the name of its file for a target."""
        return file_name(self.digest, self.stamp, target)


def make_runtime_ready(code: bytes, target_context: Any) -> None:
    """Tell LLVM the addresses of those functions of Numba's runtime that the code of a kernel calls.

    Numba would also compile two, `INSIDE`, in 20 ms, which are already in the code of each kernel that calls them.
    """
    known = {name if name.startswith("_") else f"NRT_{name}": where for name, where in _nrt_python.c_helpers.items()}
    called = {name.decode() for name in NAME_OF_RUNTIME.findall(code)} - INSIDE
    if called <= known.keys():
        for name in called:
            binding.add_symbol(name, known[name])
    else:
        rtsys.initialize(target_context)


def machine_code_of(reduced: tuple) -> tuple:
    """Return what Numba pickles of a function, without its LLVM code and the annotations of its types.

    Stubs of its two entries stay, as Numba looks their names up in the LLVM code.
    """
    (name, kind, (code, _)), described, environment, signature, objectmode, lifted, _, *rest = reduced
    entries = (described.llvm_cpython_wrapper_name, described.llvm_cfunc_wrapper_name)
    stubs = "\n".join(f'define void @"{entry}"() {{ ret void }}' for entry in entries)
    library = (name, kind, (code, binding.parse_assembly(stubs).as_bitcode()))
    return library, described, environment, signature, objectmode, lifted, "", *rest


def file_name(digest: str, stamp: str, target: Target) -> str:
    """Return the name of a kernel's file, from the digest of its sources and all else that the code depends on."""
    versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
    rest = hashlib.sha256(repr((versions, stamp, *target)).encode())
    return f"{digest}-{rest.hexdigest()[:12]}{SUFFIX}"


@functools.cache
def levels_here() -> tuple[str, ...]:
    """Return the levels whose shipped kernels run here; none if Numba is configured for another processor."""
    if _config.CPU_NAME is not None or _config.CPU_FEATURES is not None or not SHIPPED.is_dir():
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

"""Compiled kernels on disk: those that came with the wheel, and those that were compiled here.

A kernel is one file, named after all that its machine code depends on: what Numba makes of a compiled function, without
what is needed only to inline it, compressed (to an eighth) with a checksum, as damaged code would end the process, or
run. Numba's own cache names files after the place of the sources and the model of the processor, so what it keeps is
found nowhere else, and it loads all that Numba needs to compile before it reads anything.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import platform
import sys
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
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

GZIP = 31  # zlib's name of the format, which ends with a checksum
SUFFIX = ".kernel"
RUNTIME = b"NRT_"  # how functions of Numba's runtime begin, in code that calls one: it takes 30 ms to make ready
SHIPPED = Path(__file__).parents[2] / "shipped_kernels"  # in a wheel that has some (`make wheel`)
# Levels of x86-64 that a wheel's kernels are compiled for, best first, and the features of each, as LLVM names them.
V2 = frozenset({"cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"})
V3 = V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
LEVELS = {"x86-64-v3": V3, "x86-64-v2": V2}
_config: Any = numba.config
_told: set[str] = set()


class Target(NamedTuple):
    """What machine code is for, as Numba says it (`magic_tuple`)."""

    triple: str
    processor: str
    features: str


class KernelFiles(NullCache):
    """The files in which one kernel may be, as a cache of Numba's.

    digest: of its sources. stamp: what else its code depends on. directory: where it is kept if it is compiled here.
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
                    rtsys.initialize(target_context)
                return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        if cres.library.has_dynamic_globals:
            return  # addresses of this process are in it
        path = self.directory / self.name(Target(*cres.target_context.codegen().magic_tuple()))
        try:
            write_whole(path, dumps(machine_code_of(cres._reduce())))
        except OSError as error:
            tell_unwritable(self.directory, error.strerror or str(error))

    def name(self, target: Target) -> str:
        """The name of its file for a target."""
        return file_name(self.digest, self.stamp, target)


def machine_code_of(reduced: tuple) -> tuple:
    """What Numba keeps of a function, without the LLVM code by which others inline it and the text of its types.

    Numba looks the names of its two entries up in the LLVM code, so these stay.
    """
    (name, kind, (code, _)), described, environment, signature, objectmode, lifted, _, *rest = reduced
    entries = (described.llvm_cpython_wrapper_name, described.llvm_cfunc_wrapper_name)
    stubs = "\n".join(f'define void @"{entry}"() {{ ret void }}' for entry in entries)
    library = (name, kind, (code, binding.parse_assembly(stubs).as_bitcode()))
    return library, described, environment, signature, objectmode, lifted, "", *rest


def file_name(digest: str, stamp: str, target: Target) -> str:
    """A kernel's file: digest of its sources, and of what else the code depends on."""
    versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
    rest = hashlib.sha256(repr((versions, stamp, *target)).encode())
    return f"{digest}-{rest.hexdigest()[:12]}{SUFFIX}"


@functools.cache
def levels_here() -> tuple[str, ...]:
    """Levels whose kernels may be taken instead of the processor's own; none where Numba is told a processor."""
    if _config.CPU_NAME is not None or _config.CPU_FEATURES is not None or not SHIPPED.is_dir():
        return ()
    if platform.machine() != "x86_64":
        return ()
    features = binding.get_host_cpu_features()
    return levels_of({name for name, is_there in features.items() if is_there})


def levels_of(features: Collection[str]) -> tuple[str, ...]:
    """The levels that a processor with these features has, best first."""
    return tuple(level for level, needed in LEVELS.items() if needed <= set(features))


def read_whole(path: Path) -> bytes | None:
    """What was written to a file; None if it is damaged, or there is none."""
    try:
        return zlib.decompress(path.read_bytes(), wbits=GZIP)
    except (OSError, zlib.error):
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        beside.write_bytes(zlib.compress(content, wbits=GZIP))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def file_stamp(function: Callable) -> str:
    """Of a function that is not of this package: its file and that file's content, as errors tell lines in it."""
    path = Path(function.__code__.co_filename)
    try:
        return f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return str(path)


def tell_unwritable(directory: Path, why: str) -> None:
    """Say once why kernels are not kept."""
    if why not in _told:
        _told.add(why)
        print(
            f"servegym: compiled kernels cannot be kept in {directory}: {why}; each process compiles its own until "
            "there is room, or SERVEGYM_CACHE names another folder",
            file=sys.stderr,
        )

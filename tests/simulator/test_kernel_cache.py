"""A damaged cache of kernels, and one that cannot be written to: the kernel is compiled again."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from servegym.simulator.compilation.cache import is_whole

pytestmark = pytest.mark.slow

KERNEL = """
from numba import types
from servegym.simulator.compilation.kernels import compiled

@compiled(types.float64(types.float64))
def twice(x):
    return 2.0 * x

print(twice(21.0))
"""


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def empty(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def said(folder: Path, **more: object) -> str:
    """What is written to standard error by a process that uses the kernel, which is right."""
    (folder / "kernel.py").write_text(KERNEL)
    env = os.environ | {"SERVEGYM_CACHE": str(folder / "cache"), "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, "kernel.py"], env=env, cwd=folder, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout) == (0, "42.0\n"), done.stderr
    return str(done.stderr)


def kept(folder: Path, kind: str) -> Path:
    (path,) = (folder / "cache").rglob(f"*.{kind}")
    return path


@pytest.mark.parametrize(("kind", "damages"), [("nbi", (empty, flipped)), ("nbc", (cut, flipped))])
def test_what_is_damaged_is_compiled_again(kind, damages, tmp_path):
    said(tmp_path)
    path = kept(tmp_path, kind)
    for damage in damages:
        path.write_bytes(damage(path.read_bytes()))
        assert not is_whole(path)
        assert "compiling kernels of twice" in said(tmp_path)
        assert is_whole(kept(tmp_path, "nbi")) and is_whole(kept(tmp_path, "nbc"))


def test_a_cache_that_is_full_is_told_with_its_path(tmp_path):
    def few_bytes_a_file() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    line = said(tmp_path, preexec_fn=few_bytes_a_file).splitlines()[-1]
    assert line.startswith(f"servegym: compiled kernels cannot be kept in {tmp_path / 'cache'}")
    assert "File too large; each process compiles its own until there is room" in line
    assert not list((tmp_path / "cache").rglob("*.nb*"))

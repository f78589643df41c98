"""The code that a process runs, so that no worker computes with different code and gets different results."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import socket
from pathlib import Path

import servegym
from servegym.errors import ClusterError

FOLDERS = ("simulator", "latency_models", "traces", "baselines", "scenarios")  # of what makes the numbers of a run
PACKAGES = ("numpy", "numba")


@dataclasses.dataclass(frozen=True)
class Code:
    """versions: of what computes a run. digest: of the Python files of `FOLDERS`."""

    versions: tuple[tuple[str, str], ...]
    digest: str

    def check(self) -> None:
        """Raises ClusterError, in one line, where the process that asks has other code."""
        here = code_here()
        if here == self:
            return
        other = [
            f"{name} {version} there, {wanted} here"
            for (name, wanted), (_, version) in zip(self.versions, here.versions, strict=True)
            if version != wanted
        ]
        what = ", ".join(other) or "other files of servegym there than here (were they edited meanwhile?)"
        raise ClusterError(f"node {socket.gethostname()} of the Ray cluster has other code: {what}; install the same")


@functools.cache
def code_here() -> Code:
    """The code of this process."""
    versions = {"servegym": servegym.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    digest = hashlib.sha256()
    for folder in FOLDERS:
        spec = importlib.util.find_spec(f"servegym.{folder}")
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{folder}/{path.relative_to(root)}\n".encode() + path.read_bytes())
    return Code(tuple(versions.items()), digest.hexdigest()[:16])

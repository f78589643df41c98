"""The digest of the kernels that `servegym --version` prints beside the version."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
KERNELS = ("simulator", "latency_models/forms", "baselines", "envs")  # where kernels are written


def kernels_digest() -> str:
    """Digest of the sources in which kernels are: two installs with the same one decide the same way.

    SHA-256 of each file's path and text, in order of the paths; its first 12 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for folder in KERNELS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]

"""What a result depends on, beside its arguments: versions, the code of policies, the numbers of a device."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable

import numba
import numpy as np

import servegym
from servegym.simulator.compilation import Compiled, source_digest
from servegym.simulator.deployment import Deployment
from servegym.simulator.loop import advance
from servegym.simulator.policies import Policy


def versions() -> dict[str, str]:
    """Versions of what computes a run."""
    return {
        "servegym": servegym.__version__,
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
    }


def code_digests(policies: Iterable[Policy], deployment: Deployment) -> dict[str, str | None]:
    """Digest of the source of the event loop, the latency models and each policy, with all they call.

    A version says too little while code is being written: results of an edited policy are other results.
    None for what was typed at a prompt and has no source to read.
    """
    estimator = deployment.estimator
    kernels: dict[str, tuple[Compiled, ...]] = {
        "loop": (advance,),
        "latency": (deployment.device.batch_s, estimator.batch_s, estimator.exec_s),
        **{policy.name: (policy.function, policy.victims) for policy in policies},
    }
    return {name: _joined(source_digest(kernel) for kernel in group) for name, group in kernels.items()}


def deployment_digest(deployment: Deployment) -> str:
    """Digest of the numbers of a deployment: coefficients, KV blocks, watermark."""
    digest = hashlib.sha256()
    for coefficients in (deployment.device.coefficients, deployment.estimator.coefficients):
        digest.update(np.ascontiguousarray(coefficients, "f8").tobytes())
    digest.update(f"{deployment.total_blocks} {deployment.block_tokens} {deployment.watermark}".encode())
    return digest.hexdigest()[:16]


def _joined(digests: Iterable[str | None]) -> str | None:
    known = list(digests)
    return None if None in known else hashlib.sha256(" ".join(map(str, known)).encode()).hexdigest()[:16]

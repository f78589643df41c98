"""Everything on which a result depends beside its arguments: versions, the code of policies, a device's numbers."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import servegym
from servegym.simulator.compilation.digests import source_digest, text_digest
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.compilation.versions import numba_version
from servegym.simulator.features.speculating import speculating_pool
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import OWN_LIMITS, Deployment
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs import figures as figures_of_runs
from servegym.simulator.runs.loop import advance

RUNS = Path(figures_of_runs.__file__).parent
MAKERS_OF_FIGURES = ("fairness.py", "figures.py", "results.py", "sessions.py", "slos.py")


def document_digest(document: Any, digits: int = 8) -> str:
    """A name for a JSON document: the first hexadecimal digits of its SHA-256, which ignores the order of keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:digits]


def versions() -> dict[str, str]:
    """Versions of what computes a run."""
    return {
        "servegym": servegym.__version__,
        "python": platform.python_version(),
        "numba": numba_version(),
        "numpy": np.__version__,
    }


def code_digests(policies: Iterable[Policy], deployment: Deployment | Cluster) -> dict[str, str | None]:
    """Digest of the source of the event loop, the latency models and each policy, with all they call.

    A version does not change when a policy is edited, but its results do. None for a policy typed at a prompt, which
    has no source to read.
    """
    policies, pools = list(policies), [speculating_pool(pool) for pool in deployment.pools]
    kernels: dict[str, tuple[Compiled, ...]] = {
        "loop": (advance,),
        "latency": tuple(
            kernel
            for pool in pools
            for kernel in (pool.device.batch_s, pool.estimator.batch_s, pool.estimator.exec_s, pool.estimator.request_s)
        ),
    }
    of_pools = [pool.scheduler for pool in pools if pool.scheduler is not None]
    for policy in sorted([*policies, *of_pools], key=lambda policy: (policy.kind, policy.name)):
        name = policy.name if policy.kind == "scheduler" else f"{policy.kind} {policy.name}"
        kernels[name] = (policy.function, policy.victims)
    return {name: _joined(source_digest(kernel) for kernel in group) for name, group in kernels.items()}


def parameters_of(policies: Iterable[Policy], deployment: Deployment | Cluster) -> dict[str, dict[str, str]]:
    """Values of all parameters of these policies and of the pools' schedulers, by kind and label.

    Settings and sources alone would not show that a default has changed.
    """
    of_pools = [pool.scheduler for pool in deployment.pools if pool.scheduler is not None]
    return {
        f"{policy.kind} {policy.label}": {name: str(value) for name, value in policy.chosen().items()}
        for policy in (*policies, *of_pools)
    }


def gain_digests(gain: Gain) -> dict[str, str | None]:
    """Digests of the gain of a token and of the ideal gain."""
    return {"gain": text_digest(gain.function), "ideal": _short(inspect.getsource(type(gain)).encode())}


def figures_digests(gain: Gain) -> dict[str, str | None]:
    """Digests of what makes the figures of a run from its tokens: `gain_digests`, attainment, latencies, waits."""
    sources = b"".join((RUNS / name).read_bytes() for name in MAKERS_OF_FIGURES)
    return {**gain_digests(gain), "figures": _short(sources)}


def deployment_digest(deployment: Deployment | Cluster) -> str:
    """Digest of the numbers of a deployment: coefficients, memory, roles and settings of its pools, and the link."""
    digest = hashlib.sha256()
    for pool in map(speculating_pool, deployment.pools):
        for coefficients in (pool.device.coefficients, pool.estimator.coefficients):
            digest.update(np.ascontiguousarray(coefficients, "f8").tobytes())
        numbers = (pool.engines, pool.total_blocks, pool.block_tokens, pool.watermark, pool.role, pool.host)
        digest.update(f"{numbers} {pool.scheduler.to_json() if pool.scheduler else None}".encode())
        digest.update(f"{pool.tier} {pool.prefix_store}".encode())
        if pool.prefix_caching is not None:
            digest.update(f"caching {pool.prefix_caching}".encode())
        if pool.kv_groups:
            digest.update(f"{pool.kv_groups}".encode())
        if pool.kv_events:
            digest.update(b"kv events")
        if pool.async_scheduling:
            digest.update(b"async scheduling")
        for limit in OWN_LIMITS:
            if getattr(pool, limit) is not None:
                digest.update(f"{limit} {getattr(pool, limit)}".encode())
        if pool.adapters is not None:
            digest.update(f"{pool.adapters}".encode())
        if pool.lockstep > 1:
            digest.update(f"lockstep {pool.lockstep}".encode())
        if pool.startup is not None:
            digest.update(f"{pool.startup}".encode())
        if pool.role_change_s is not None:
            digest.update(f"role change {pool.role_change_s}".encode())
        if pool.operators is not None:
            operators = pool.operators
            digest.update(f"{operators.layers} {operators.check_s} {operators.jitter_s}".encode())
            digest.update(operators.coefficients.tobytes())
    if isinstance(deployment, Cluster):
        digest.update(f"{deployment.link} {deployment.signal_delay_s} {deployment.tiers}".encode())
    return digest.hexdigest()[:16]


def _joined(digests: Iterable[str | None]) -> str | None:
    known = list(digests)
    return None if None in known else _short(" ".join(map(str, known)).encode())


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]

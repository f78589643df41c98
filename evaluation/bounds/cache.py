"""Keeps bounds on disk, a file for each scenario, as a bound takes seconds to minutes and many runs share it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from servegym.evaluation.bounds import clairvoyant
from servegym.evaluation.bounds.clairvoyant import FINENESS, Bound
from servegym.evaluation.identity import document_digest
from servegym.replacing import replacing
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario

DEFAULT_DIRECTORY = Path("results") / "bounds"


def identity(scenario: Scenario, bin_s: float | None = None, fineness: int = FINENESS) -> dict[str, Any]:
    """Everything that a bound depends on, as JSON. Scheduler, router, scaler, link and estimator are not part of it."""
    return {
        "workload": scenario.workload.digest,
        "gain": dataclasses.asdict(scenario.gain),
        "until_s": repr(scenario.until_s),
        "disturbance": repr(scenario.disturbance),
        "pools": [_pool(pool) for pool in scenario.deployment.pools],
        "bin_s": bin_s,
        "fineness": fineness,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "code": _code_digest(),
    }


def cached_bound(
    scenario: Scenario, directory: str | Path = DEFAULT_DIRECTORY, bin_s: float | None = None, fineness: int = FINENESS
) -> Bound:
    """`tdg_upper_bound` of the scenario, read from the directory if it is there; else computed and written there.

    A file that is damaged, or holds a bound with other arguments, is overwritten. Raises as `tdg_upper_bound`.
    """
    clairvoyant.check_scenario(scenario)
    asked = json.loads(json.dumps(identity(scenario, bin_s, fineness)))
    digest = document_digest(asked, 16)
    path = Path(directory) / f"bound-{digest}.json"
    found = _read(path, asked)
    if found is None:
        found = clairvoyant.tdg_upper_bound(scenario, bin_s, fineness)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.write_text(json.dumps({"scenario": asked, "bound": dataclasses.asdict(found)}, indent=1), "utf-8")
    return found


def _pool(pool: Deployment) -> dict[str, Any]:
    model = pool.device
    return {
        "form": getattr(model, "form", None),
        "coefficients": np.asarray(model.coefficients, "f8").tolist(),
        "engines": pool.engines,
        "role": pool.role,
        "total_blocks": pool.total_blocks,
        "block_tokens": pool.block_tokens,
        "capacity_tokens": pool.capacity_tokens,
        "host_memory": pool.host is not None and pool.host.blocks > 0,
    }


def _code_digest() -> str:
    """Digest of the source of this package, so that a bound computed by earlier code is not reused."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _read(path: Path, asked: dict[str, Any]) -> Bound | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Bound(**document["bound"]) if document["scenario"] == asked else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None

"""One run of vLLM on an emulated device in virtual time, in an engine's environment.

    ENGINE_PYTHON -m experiments.engines.virtual_run JOB.json TOKENS.npz

JOB.json is a `Job`; TOKENS.npz gets the times of all requests' tokens. `run_virtually` does it from another
environment.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.virtual_time import drive, make_engine
from servegym.adapters.replay.bodies import XARGS
from servegym.errors import ExperimentError
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import WORKLOAD

MODULE = "experiments.engines.virtual_run"


@dataclasses.dataclass(frozen=True)
class Job:
    """model: folder. device: profile name or path. requests: .npy file with a workload's table. options: of vLLM's
    engine. policy: artifact for the plug-in; None: vLLM's own scheduler.
    """

    model: str
    device: str
    requests: str
    options: Mapping[str, Any]
    policy: str | None = None


def run(job: Job) -> list[np.ndarray]:
    """The times in seconds at which each request's tokens came out."""
    options = dict(job.options)
    if job.policy is not None:
        # In virtual time a decision that is late by the real clock is none that matters.
        os.environ |= {"SERVEGYM_POLICY": job.policy, "SERVEGYM_DECISION_LIMIT_S": "60"}
        name = "AsyncScheduler" if options.get("async_scheduling") else "Scheduler"
        options["scheduler_cls"] = f"servegym.adapters.vllm.{name}"
    engine = make_engine(job.model, job.device, **options)
    return drive(engine, Workload(np.load(job.requests).astype(WORKLOAD)), terms)


def terms(row: np.record) -> dict[str, float]:
    """What a client sends as vllm_xargs for a request."""
    return {name: float(row[name]) for name in XARGS if np.isfinite(row[name])}


def run_virtually(python: Path, job: Job, workload: Workload) -> list[np.ndarray]:
    """`run` in another environment, for a workload of this one's. Raises ExperimentError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        requests, tokens, document = (Path(folder) / name for name in ("requests.npy", "tokens.npz", "job.json"))
        np.save(requests, workload.table)
        document.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(job, requests=str(requests)))))
        command = [str(python), "-m", MODULE, str(document), str(tokens)]
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not tokens.exists():
            raise ExperimentError(f"a run in virtual time failed: {(done.stderr.strip() or 'it said nothing')[-2000:]}")
        loaded = np.load(tokens)
        return np.split(loaded["times_s"], np.cumsum(loaded["counts"])[:-1])


def main(arguments: list[str]) -> int:
    document, out = arguments
    times = run(Job(**json.loads(Path(document).read_text())))
    np.savez(out, times_s=np.concatenate(times), counts=[len(request) for request in times])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

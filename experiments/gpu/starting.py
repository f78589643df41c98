"""Starting vLLM for a run: on the GPU with a model's shape, or for a rehearsal on a CPU with a tiny one."""

import argparse
import dataclasses
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.gpu.models import make_shape
from experiments.gpu.records import Budget, Lines
from servegym.adapters.profiling.vllm_engine import Options, VllmMeter
from servegym.adapters.vllm.versions import installed_version

# No network, no telemetry, and vLLM's own sampler: FlashInfer is not carried.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}  # fmt: skip
REHEARSAL = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
# "default": torch.compile and CUDA graphs, as vLLM serves; "graphs": CUDA graphs of what is not compiled.
COMPILATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL"}},
    "eager": {"enforce_eager": True},
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is served. model: a name of `models.MODELS`. more: further arguments of vllm.LLM."""

    model: str = "llama-3.1-8b"
    batch_tokens: int = 8192
    sequences: int = 256
    context_tokens: int = 32768
    memory_share: float = 0.9
    compilation: str = "default"
    asynchronous: bool = False
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def started(shape: Shape, models: Path, rehearse: bool) -> tuple[VllmMeter, dict[str, Any]]:
    """The engine, and what its start took. Raises ProfilingError."""
    os.environ.update(ENVIRONMENT | (REHEARSAL if rehearse else {}))
    begin_s = time.monotonic()
    if rehearse:  # a model and limits that a CPU can do
        shape = dataclasses.replace(
            shape, batch_tokens=512, sequences=32, context_tokens=2048, memory_share=0.2, compilation="eager"
        )
    model = make_shape(models, shape.model, tiny=rehearse)
    more = {"load_format": "dummy", "async_scheduling": shape.asynchronous, **shape.more}
    chosen = dict(COMPILATIONS[shape.compilation])
    eager = chosen.pop("enforce_eager", False)
    meter = VllmMeter(
        Options(
            str(model), shape.batch_tokens, shape.sequences, shape.context_tokens, shape.memory_share, eager,
            {**chosen, **more},
        )
    )  # fmt: skip
    asynchronous = bool(meter.engine.vllm_config.scheduler_config.async_scheduling)  # a CPU's engine never is
    shape = dataclasses.replace(shape, asynchronous=asynchronous)
    return meter, {
        "start_s": round(time.monotonic() - begin_s, 2),
        "engine": {**meter.facts(), "shape": dataclasses.asdict(shape), "space": dataclasses.asdict(meter.space)},
    }


def machine() -> dict[str, Any]:
    """What this runs on."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.max.sm", "--format=csv,noheader"]
        gpu = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        gpu = ""
    return {
        "gpu": gpu or "none",
        "vllm": installed_version(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def parser_of(doc: str | None, limit_s: float) -> argparse.ArgumentParser:
    """Options that all scripts have."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of runs.jsonl; runs that it has are kept")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="of all of it; default: %(default)s")
    parser.add_argument("--models", type=Path, default=Path("/tmp/models"), help="folder for the shapes")
    parser.add_argument("--compilation", choices=sorted(COMPILATIONS), default="default")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, a tiny model, few requests: no measurement")
    return parser


def lines_of(given: argparse.Namespace) -> Lines:
    return Lines(given.out, Budget(given.limit_s), {"machine": machine(), "rehearsal": given.rehearse})

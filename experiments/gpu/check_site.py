"""Unpack what `pack_vllm` has packed, and say what of it imports: on the GPU machine all, on a CPU all but the kernels.

    python3.12 experiments/gpu/check_site.py .gpu SITE

Runs by itself, with the standard library: a Python of its own imports the modules, with SITE and this repository in
front of its path. That Python is this one, which must have what the packer left out (`there.json`): torch, numba and so
on. One JSON object is printed; status 1 if what should import does not.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = (
    "vllm.v1.engine.llm_engine", "vllm.v1.worker.gpu_worker", "vllm.v1.core.sched.async_scheduler",
    "vllm.model_executor.models.llama", "vllm.model_executor.models.qwen3_moe",
    "vllm.v1.attention.backends.flash_attn", "vllm.entrypoints.openai.api_server",
    "servegym.adapters.vllm.scheduler", "servegym.adapters.emulation.executor", "servegym.adapters.routing.server",
    "experiments.gpu.first_life", "experiments.gpu.served", "experiments.gpu.shapes",
)  # fmt: skip
KERNELS = ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa3_C")  # of a GPU
CODE = """
import importlib, json, sys, time
found = {}
for name in sys.argv[1:]:
    begin_s = time.monotonic()
    try:
        importlib.import_module(name)
        found[name] = round(time.monotonic() - begin_s, 2)
    except BaseException as error:
        found[name] = f"{type(error).__name__}: {error}"[:300]
print("\\n" + json.dumps(found))
"""


def unpack(parts: Path, site: Path) -> float:
    """Seconds it took. Raises subprocess.CalledProcessError."""
    begin_s = time.monotonic()
    site.mkdir(parents=True, exist_ok=True)
    command = f"cat '{parts}'/part-* | xz -dc -T0 | tar -x -C '{site}'"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
    return round(time.monotonic() - begin_s, 2)


def imported(site: Path) -> dict[str, float | str]:
    """Of each module the seconds its import took, or what went wrong."""
    gpu = Path("/dev/nvidia0").exists()
    path = os.pathsep.join(
        [str(site), str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    if not gpu:
        environment["VLLM_TARGET_DEVICE"] = "cpu"
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE, *MODULES, *KERNELS], env=environment, stdout=subprocess.PIPE
    )
    lines = done.stdout.decode().strip().splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    parts, site = map(Path, arguments)
    document: dict[str, object] = {"python": sys.version.split()[0]}
    if not (site / "vllm").is_dir():
        document["unpacked_s"] = unpack(parts, site)
    found = imported(site)
    needed = (*MODULES, *KERNELS) if Path("/dev/nvidia0").exists() else MODULES
    failed = [name for name in needed if not isinstance(found.get(name), float)]
    print(json.dumps({**document, "imports": found, "failed": failed}, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

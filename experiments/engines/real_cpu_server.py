"""vLLM's server on one CPU core, as a process beside this one, and how long its engine waits for that core."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from servegym.adapters.profiling.vllm_engine import KERNELS
from servegym.errors import ExperimentError

# One thread computes; the server's front end and the client have what is left of the machine. No thread is bound to a
# core: with that one on the first and all others on the second, some waited there with the engine's interpreter lock,
# and batches took a fifth longer.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": KERNELS,
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """The engine's limits, the share of memory it takes, the port, and how long it may take to start."""

    batch_tokens: int
    sequences: int
    context_tokens: int
    memory_share: float
    port: int
    start_s: float


@contextlib.contextmanager
def server(model: Path, log: Path, options: ServerOptions) -> Iterator[tuple[str, int]]:
    """vLLM's OpenAI-compatible server, until the end of the block: its URL, and the process of its engine."""
    import httpx

    arguments = {
        "--model": model,
        "--served-model-name": "tiny",
        "--host": "127.0.0.1",
        "--port": options.port,
        "--max-num-batched-tokens": options.batch_tokens,
        "--max-num-seqs": options.sequences,
        "--max-model-len": options.context_tokens,
        "--gpu-memory-utilization": options.memory_share,
    }
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager",
               "--no-enable-prefix-caching", "--no-async-scheduling"]  # fmt: skip
    command += [str(word) for pair in arguments.items() for word in pair]
    url = f"http://127.0.0.1:{options.port}"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + options.start_s
        while True:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ExperimentError(f"vLLM's server did not start; {log} says why")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK:
                    break
            time.sleep(0.5)
        yield url, engine_process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def engine_process(server_process: int) -> int:
    """The child process in which the engine core runs: the one that has computed most."""
    children = Path(f"/proc/{server_process}/task/{server_process}/children").read_text().split()
    if not children:
        raise ExperimentError("vLLM's server has no process for its engine")
    return max(map(int, children), key=lambda child: core_time_s(child)[0])


def core_time_s(process: int) -> tuple[float, float]:
    """Seconds that a process's main thread has run, and that it was ready to run and had no core (Linux)."""
    running, waiting, _ = Path(f"/proc/{process}/schedstat").read_text().split()
    return float(running) / 1e9, float(waiting) / 1e9

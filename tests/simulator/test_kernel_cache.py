"""Files of compiled kernels: which is taken, and what happens where it is damaged or cannot be written."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import servegym
from servegym.simulator.compilation import cache
from servegym.simulator.compilation.cache import (
    LEVELS,
    Target,
    features_of,
    file_name,
    levels_here,
    levels_of,
    read_whole,
)
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.compilation.versions import versions

needs_jit = pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
KERNEL = """
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled

@compiled(types.float64(types.float64))
def twice(x):
    return 2.0 * x

print(twice(21.0))
"""


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def empty(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def said(
    folder: Path, before: str = "", environment: dict[str, str] | None = None, kernel: str = KERNEL, **more: object
) -> str:
    """What is written to standard error by a process that uses the kernel, which is right.

    before: statements that it begins with. environment: variables beside those of the tests.
    """
    (folder / "kernel.py").write_text(kernel)
    env = os.environ | {"SERVEGYM_CACHE": str(folder / "cache"), "NUMBA_DISABLE_JIT": "0"} | (environment or {})
    command = [sys.executable, "-c", f"{before}\nimport kernel"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout) == (0, "42.0\n"), done.stderr
    return str(done.stderr)


def kept(folder: Path) -> Path:
    (path,) = (folder / "cache").rglob("*.kernel")
    return path


@pytest.mark.slow
def test_what_is_damaged_is_compiled_again(tmp_path):
    said(tmp_path)
    assert said(tmp_path) == "", "a second process reads it"
    path = kept(tmp_path)
    for damage in (empty, cut, flipped):
        path.write_bytes(damage(path.read_bytes()))
        assert read_whole(path) is None
        assert "compiling kernels of twice" in said(tmp_path)
        assert read_whole(kept(tmp_path)) is not None


@pytest.mark.slow
def test_a_cache_that_is_full_is_told_with_its_path(tmp_path):
    def few_bytes_a_file() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    line = said(tmp_path, preexec_fn=few_bytes_a_file).splitlines()[-1]
    assert line.startswith(f"servegym: compiled kernels cannot be kept in {tmp_path / 'cache'}")
    assert "File too large; each process compiles its own until there is room" in line
    assert not list((tmp_path / "cache").rglob("*.kernel*"))


TARGET = Target("x86_64-unknown-linux-gnu", "x86-64-v3", "")


def test_a_file_is_named_after_all_that_its_code_depends_on(monkeypatch):
    names = {file_name("0a1b", "", TARGET)}
    names.add(file_name("0a1c", "", TARGET))
    names.add(file_name("0a1b", "policy.py", TARGET))
    names |= {file_name("0a1b", "", TARGET._replace(**{field: "other"})) for field in Target._fields}
    for module, version in (("llvmlite", "__version__"), ("np", "__version__"), ("sys.implementation", "cache_tag")):
        with monkeypatch.context() as patch:
            patch.setattr(f"servegym.simulator.compilation.versions.{module}.{version}", "other")
            patch.setattr(cache, "versions", versions.__wrapped__)
            names.add(file_name("0a1b", "", TARGET))
    with monkeypatch.context() as patch:
        patch.setattr("servegym.simulator.compilation.versions.numba_version", lambda: "other")
        patch.setattr(cache, "versions", versions.__wrapped__)
        names.add(file_name("0a1b", "", TARGET))
    assert len(names) == 10
    assert file_name("0a1b", "", TARGET) in names


def test_the_level_of_a_processor_is_the_best_whose_features_it_has():
    of_x86 = LEVELS["x86_64"]
    assert levels_of("x86_64", of_x86["x86-64-v3"] | {"avx512f"}) == ("x86-64-v3", "x86-64-v2")
    assert levels_of("x86_64", of_x86["x86-64-v3"] - {"bmi2"}) == ("x86-64-v2",)
    assert levels_of("x86_64", {"sse3"}) == ()


# As Linux describes cores of Neoverse N1 and Cortex-A72.
NEOVERSE_N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"


@pytest.mark.parametrize(
    ("cores", "levels"),
    [
        ([NEOVERSE_N1] * 2, ("neoverse-n1", "generic")),
        ([CORTEX_A72], ("generic",)),
        ([NEOVERSE_N1, CORTEX_A72], ("generic",)),  # a process may move to the lesser core
        ([], ()),
    ],
)
def test_the_levels_of_an_aarch64_processor(cores, levels, tmp_path, monkeypatch):
    described = tmp_path / "cpuinfo"
    described.write_text("".join(f"processor\t: {i}\nFeatures\t: {names}\n\n" for i, names in enumerate(cores)))
    monkeypatch.setattr(cache, "CPUINFO", described)
    monkeypatch.setattr(cache, "SHIPPED", tmp_path)
    monkeypatch.setattr(cache.platform, "machine", lambda: "aarch64")
    assert levels_here.__wrapped__() == levels


@pytest.mark.parametrize("machine", LEVELS)
def test_llvm_compiles_for_each_level(machine, capfd):
    """It warns of names that it does not know."""
    cache.binding.initialize_all_targets()
    cache.binding.initialize_all_asmprinters()
    triple = f"{machine}-unknown-linux-gnu"
    code = cache.binding.parse_assembly("define double @twice(double %x) {\n%y = fadd double %x, %x\nret double %y\n}")
    for level in LEVELS[machine]:
        target = cache.binding.Target.from_triple(triple).create_target_machine(cpu=level)
        assert "twice:" in target.emit_assembly(code)
    assert capfd.readouterr().err == ""


def test_where_a_wheel_has_its_kernels():
    """.ci/wheel puts them there."""
    assert Path(servegym.__file__).parent / "shipped_kernels" == cache.SHIPPED
    assert "/servegym)/shipped_kernels" in (Path(__file__).parents[2] / ".ci" / "wheel").read_text()


def test_kernels_of_a_wheel_are_taken_unless_numba_is_told_a_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(
        cache.binding, "get_host_cpu_features", lambda: dict.fromkeys(LEVELS["x86_64"]["x86-64-v2"], True)
    )
    monkeypatch.setattr(cache, "SHIPPED", tmp_path)
    here = levels_here.__wrapped__
    assert here() == ("x86-64-v2",)
    monkeypatch.setattr(cache, "setting", {"CPU_NAME": "x86-64-v2"}.get)
    assert here() == ()
    monkeypatch.setattr(cache, "setting", {}.get)
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "none")
    assert here() == ()


@needs_jit
@pytest.mark.slow
def test_a_kernel_that_a_wheel_ships_is_not_compiled(tmp_path):
    """Compiled for a level, put where a wheel has its kernels, and read by a process with an empty cache."""
    machine = cache.platform.machine()
    levels = levels_of(machine, features_of(machine)) if machine in LEVELS else ()
    if not levels:
        pytest.skip("no level of this processor is known")
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    said(tmp_path, environment={"NUMBA_CPU_NAME": levels[0], "NUMBA_CPU_FEATURES": ""})
    kept(tmp_path).rename(shipped / kept(tmp_path).name)
    there = "from pathlib import Path\nfrom servegym.simulator.compilation import cache\n"
    assert said(tmp_path, f"{there}cache.SHIPPED = Path({str(shipped)!r})") == ""
    assert not list((tmp_path / "cache").rglob("*.kernel"))

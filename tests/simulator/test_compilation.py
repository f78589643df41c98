"""Compiled kernels on disk: an edit anywhere takes effect, and nothing else compiles again."""

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from servegym.simulator.batching.chunks import chunk_of
from servegym.simulator.compilation import digests, parked
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.cache import cache_root
from servegym.simulator.compilation.digests import source_digest
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.policies.policy import last_ranked_first
from servegym.simulator.runs import parking

POLICY = """
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.compilation import numba_types as types
import {rules} as rules
from {rules} import FACTOR, TABLE, helper

UNRELATED = 1

@compiled(types.float64(types.float64))
def score(x):
    return helper(x) * FACTOR + rules.OFFSET + TABLE[1] * 1000.0

def other(x):
    return x
"""
TYPES = "from servegym.simulator.compilation import numba_types as types\n"
RULES = """
import numpy as np
from servegym.simulator.compilation.kernels import kernel

FACTOR = 10.0
OFFSET = 0.5
TABLE = np.array([0.0, 0.0])
UNRELATED = 1

@kernel
def inner(x):
    return x + 1.0

@kernel
def helper(x):
    return inner(x) + 1.0

@kernel
def unrelated(x):
    return x
"""


def load(folder: Path, rules: str = RULES, policy: str = POLICY):
    """The function of a policy in one file that calls a helper in another."""
    folder.mkdir()
    for module, text in (("rules_of_test", rules), ("policy_of_test", policy.format(rules="rules_of_test"))):
        path = folder / f"{module}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(module, path)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module].score


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Digest of the policy's function with some text in its helper's file, or its own, replaced."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def of(old: str = "", new: str = "", policy: tuple[str, str] = ("", "")):
        assert old in RULES and policy[0] in POLICY
        folder = tmp_path / f"v{len(list(tmp_path.iterdir()))}"
        return source_digest(load(folder, RULES.replace(old, new) if old else RULES, POLICY.replace(*policy)))

    return of


needs_jit = pytest.mark.skipif(JIT_DISABLED, reason="no dispatchers without compilation")


@needs_jit
@pytest.mark.parametrize(("old", "new"), [
    ("return inner(x) + 1.0", "return inner(x) + 2.0"),  # a helper in another file
    ("return x + 1.0", "return x + 2.0"),  # a helper's helper
    ("FACTOR = 10.0", "FACTOR = 20.0"),  # a constant that was imported
    ("OFFSET = 0.5", "OFFSET = 0.25"),  # a constant read through its module
    ("TABLE = np.array([0.0, 0.0])", "TABLE = np.array([0.0, 1.0])"),  # an array of constants
])  # fmt: skip
def test_an_edit_in_another_file_gives_another_digest(digest, old, new):
    assert digest() == digest()
    assert digest(old, new) != digest()


@needs_jit
def test_what_a_function_does_not_reach_does_not_matter(digest):
    assert digest("UNRELATED = 1", "UNRELATED = 2") == digest()
    assert digest("def unrelated(x):\n    return x", "def unrelated(x):\n    return 2 * x") == digest()
    assert digest("import numpy as np", "# a remark\nimport numpy as np") == digest()
    assert digest(policy=("UNRELATED = 1", "UNRELATED = 2")) == digest()
    assert digest(policy=("def other(x):\n    return x", "def other(x):\n    return 2 * x")) == digest()
    assert digest(policy=("TABLE[1] * 1000.0", "TABLE[1] * 1001.0")) != digest()


@needs_jit
def test_helpers_in_an_inner_function_count(digest):
    inside = ("return helper(x)", "def again(y):\n        return helper(y)\n    return again(x)")
    assert digest("return x + 1.0", "return x + 2.0", policy=inside) != digest(policy=inside)


@needs_jit
def test_what_an_intrinsic_reads_from_memory_counts():
    """A kernel that takes up a record by its address has the record's layout in its code, not in its signature."""

    def reader(layout: np.dtype) -> Any:
        _, restore, _ = parked.parking(types.Tuple((types.from_dtype(layout),)))

        def read(address):
            return restore(address)[0].second

        return read

    first = np.dtype([("first", "f8"), ("second", "f8")])
    assert source_digest(reader(first)) == source_digest(reader(first)) is not None
    assert source_digest(reader(np.dtype([("second", "f8"), ("first", "f8")]))) != source_digest(reader(first))


@needs_jit
def test_what_makes_the_code_of_kernels_counts(monkeypatch):
    for name in digests.MAKERS:
        assert (Path(digests.__file__).parents[1] / name).read_bytes() in digests.makers()
    before = source_digest(parking.park)
    monkeypatch.setattr(digests, "makers", lambda: b"edited")
    assert source_digest(parking.park) != before


def test_kernels_of_the_package_have_digests():
    assert source_digest(chunk_of) == source_digest(chunk_of.py_func) is not None
    assert source_digest(chunk_of) != source_digest(last_ranked_first) is not None


def test_a_function_without_a_file_is_compiled_and_not_cached():
    namespace: dict = {}
    exec("def twice(x):\n    return 2.0 * x", namespace)
    twice = Compiled(namespace["twice"], types.float64(types.float64))
    assert source_digest(twice) is None and twice(4.0) == 8.0


def test_a_compiled_function_is_pickled_by_reference():
    assert pickle.loads(pickle.dumps(last_ranked_first)) is last_ranked_first


# On disk, one process after another


def run(folder: Path, cache: Path, **environment: str) -> tuple[float, str]:
    """What the policy's function gives for 1 in a new process, and what it said."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"SERVEGYM_CACHE": str(cache), "PYTHONPATH": path, "NUMBA_DISABLE_JIT": "0"} | environment
    # Python takes the bytecode of a file for current where its size and the second of its last change are the same.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    code = "from policy import score; print(score(1.0))"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout), done.stderr


def files(cache: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
def test_an_edit_takes_effect_and_the_rest_stays_compiled(tmp_path):
    folder, cache = tmp_path / "package", tmp_path / "cache"
    folder.mkdir()
    (folder / "policy.py").write_text(POLICY.format(rules="rules"))
    (folder / "rules.py").write_text(RULES)
    value, said = run(folder, cache)
    assert value == 30.5 and "compiling kernels" in said  # (1 + 1 + 1) * 10 + 0.5
    first = files(cache)
    assert first
    assert run(folder, cache) == (30.5, "") and files(cache) == first, "a second process compiles nothing"
    edit(folder / "rules.py", "UNRELATED = 1", "UNRELATED = 2")
    assert run(folder, cache) == (30.5, "") and files(cache) == first, "nor does one after an edit elsewhere"
    for old, new, value in (
        ("return x + 1.0", "return x + 2.0", 40.5),
        ("FACTOR = 10.0", "FACTOR = 20.0", 80.5),
        ("TABLE = np.array([0.0, 0.0])", "TABLE = np.array([0.0, 1.0])", 1080.5),
    ):
        edit(folder / "rules.py", old, new)
        assert run(folder, cache)[0] == value, f"stale after {new}"
    assert files(cache).items() > first.items(), "what was compiled before is kept"


@pytest.mark.slow
def test_the_same_file_under_another_name_is_compiled_anew(tmp_path):
    """Symbols of its code are named after its module."""
    folder, cache = tmp_path / "package", tmp_path / "cache"
    folder.mkdir()
    rules = TYPES + RULES.replace("import kernel", "import compiled, kernel")
    alone = "\n@compiled(types.float64(types.float64))\ndef score(x):\n    return helper(x) * FACTOR\n"
    (folder / "policy.py").write_text(rules + alone)
    assert run(folder, cache)[0] == 30.0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("policy_by_another_name", {str(folder / "policy.py")!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
print(sys.modules[spec.name].score(1.0))
"""
    env = os.environ | {"SERVEGYM_CACHE": str(cache), "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=elsewhere, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "30.0\n"), done.stderr
    assert run(folder, cache) == (30.0, "")


@pytest.mark.slow
def test_kernels_that_check_their_indices_are_never_taken_for_those_that_do_not(tmp_path):
    folder, cache = tmp_path / "package", tmp_path / "cache"
    folder.mkdir()
    # Index 2 of an array of two: whatever lies there.
    beyond = POLICY.replace("TABLE[1] * 1000.0", "part(TABLE, x)")
    beyond += "\nfrom servegym.simulator.compilation.kernels import kernel\n"
    beyond += "\n@kernel\ndef part(table, x):\n    return table[int(2 * x)]\n"
    (folder / "policy.py").write_text(beyond.format(rules="rules"))
    (folder / "rules.py").write_text(RULES)
    run(folder, cache)
    first = files(cache)
    assert first
    with pytest.raises(AssertionError, match="IndexError: index is out of bounds"):
        run(folder, cache, NUMBA_BOUNDSCHECK="1")
    both = files(cache)
    assert both.items() > first.items()
    run(folder, cache)
    assert files(cache) == both


@needs_jit
@pytest.mark.parametrize(("flag", "value"), [("BOUNDSCHECK", 1), ("OPT", 0), ("DEBUGINFO_DEFAULT", 1)])
def test_settings_of_numba_that_the_code_depends_on_count(monkeypatch, flag, value):
    monkeypatch.setattr(numba.config, flag, None)
    before = source_digest(chunk_of)
    monkeypatch.setattr(numba.config, flag, value)
    assert source_digest(chunk_of) != before


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_falls_back_to_a_temporary_folder(tmp_path):
    folder, temporary = tmp_path / "package", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    (folder / "policy.py").write_text(POLICY.format(rules="rules"))
    (folder / "rules.py").write_text(RULES)
    (tmp_path / "file").write_text("a folder cannot be made below a file")
    assert run(folder, tmp_path / "file" / "cache", TMPDIR=str(temporary))[0] == 30.5
    assert list(temporary.rglob("*.kernel"))


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVEGYM_CACHE", str(tmp_path / "a" / "b"))
    assert cache_root() == tmp_path / "a" / "b" and cache_root().is_dir()
    monkeypatch.delenv("SERVEGYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "servegym"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "servegym"
    # A folder that is there and cannot be written to (what runs this test).
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_root().parent == tmp_path and cache_root().name.startswith("servegym-")


@needs_jit
def test_any_policy_plugs_into_the_same_compiled_loop(tmp_path):
    """A new policy must not compile the event loop again: that would take seconds each time."""
    from servegym.simulator.runs.loops import LOOPS
    from servegym.simulator.runs.simulation import Simulation
    from tests.simulator.forming import by_place
    from tests.simulator.scenes import requests, scene

    Simulation(scene(requests(prompt_tokens=[2, 3]))).run()
    before = [loop._code for loop in LOOPS]
    assert any(before)
    Simulation(scene(requests(prompt_tokens=[2, 3]), by_place())).run()
    assert [loop._code for loop in LOOPS] == before
    assert np.isfinite(Simulation(scene(requests(prompt_tokens=[2]), by_place())).run().requests.finish_s).all()


@pytest.mark.slow
def test_a_digest_is_the_same_in_every_process():
    code = "from servegym.simulator.compilation.digests import source_digest; "
    code += "from servegym.simulator.runs.loop import advance; "
    code += "from servegym.simulator.runs.parking import park; "
    digests = {
        subprocess.run(
            [sys.executable, "-c", code + "print(source_digest(advance), source_digest(park))"],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(6)
    }  # fmt: skip
    assert len(digests) == 1

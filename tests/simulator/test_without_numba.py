"""A process that only reads compiled kernels does not import Numba. Types and settings are the same as Numba's."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import llvmlite
import numba
import numpy as np
import pytest

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.entries import layout_holds
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.compilation.settings import JIT_DISABLED, SETTINGS, code_settings
from servegym.simulator.compilation.versions import versions
from servegym.simulator.records.signatures import gain, gain_signature, scheduler_signature
from servegym.simulator.records.state import SIMULATION_STATE

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
END = "\nimport sys; print('numba' in sys.modules)"


def said(code: str, cache: Path | None = None, folder: Path | None = None) -> list[str]:
    """The lines of a process that runs the code after another has compiled what it needs."""
    env = os.environ | ({"SERVEGYM_CACHE": str(cache)} if cache else {})
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code + END], env=env, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["EngineBatching-v0", pytest.param("ClusterRouting-v1", marks=pytest.mark.slow)])
def test_an_environment_that_is_reset_and_stepped(name: str) -> None:
    code = f"import gymnasium\nenv = gymnasium.make('servegym:{name}')\nenv.reset(seed=0)\n"
    assert said(code + "env.step(env.action_space.sample())") == ["False"]


def test_a_run() -> None:
    code = "import servegym\nservegym.simulate(trace='azure-conv', rate_per_s=6.0, requests=50)"
    assert said(code) == ["False"]


KERNELS = """
import numpy as np
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import allocating_kernel, compiled, kernel
from servegym.simulator.compilation.parked import parking

@allocating_kernel
def ones(n):
    return np.nextafter(np.ones(n).sum(), -np.inf)

@kernel
def half(x):
    if x < 0.0:
        raise ValueError("below zero")
    return x / 2.0

@compiled(types.float64(types.int64))
def summed(n):
    return ones(n)

@compiled(types.float64(types.float64))
def halved(x):
    return half(x)

@compiled(types.float64(types.FunctionType(types.float64(types.float64)), types.float64))
def called(function, x):
    return function(x)
"""


def test_arrays_are_made_and_numba_is_imported_for_an_error_only(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(KERNELS)
    made = "from own import summed\nassert [summed(n) for n in (1, 100_000)] == [1 - 2**-53, 100_000 - 2**-36]"
    assert said(made, tmp_path / "cache", tmp_path) == ["False"]
    raised = """
from own import halved
assert halved(3.0) == 1.5
print("numba" in __import__("sys").modules)
try:
    halved(-1.0)
except ValueError as error:
    text = str(error)
assert text == "below zero"
"""
    assert said(raised, tmp_path / "cache", tmp_path) == ["False", "True"]


def test_an_error_in_a_function_that_a_kernel_calls_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(KERNELS)
    code = """
from own import called, halved
from servegym.simulator.compilation.failures import call
failures = []
call(failures.append, called.entry, halved, -1.0)
(failure,) = failures
assert (failure.error, failure.function) == ("ValueError: below zero", "half"), failure
assert failure.file.endswith("own.py") and "raise ValueError" in open("own.py").read().splitlines()[failure.line - 1]
"""
    assert said(code, tmp_path / "cache", tmp_path) == ["True"]


class Pair(NamedTuple):
    numbers: np.ndarray
    factor: float


def scaled(pair, flags, whole, row):
    return pair.numbers[1, 0] * pair.factor + flags[0] * 100.0 + whole * 1000.0 + row.x


ROW = np.dtype([("x", "f8"), ("n", "i4")], align=True)
PAIR = types.NamedTuple((types.Array(types.float64, 2, "C"), types.float64), Pair)
ENTERED = Compiled(scaled, types.float64(PAIR, types.Array(types.boolean, 1, "C"), types.int64, types.from_dtype(ROW)))


def given(**changes: object) -> list[object]:
    row = np.zeros(1, ROW).view(np.recarray)
    row[0].x = 0.5
    values = {"pair": Pair(np.arange(6.0).reshape(3, 2), 10.0), "flags": np.array([True]), "whole": 3, "row": row[0]}
    return list((values | changes).values())


def test_an_entry_takes_arrays_tuples_records_and_numbers() -> None:
    assert layout_holds()
    for whole in (3, np.int64(3), np.uint8(3), True + 2):
        assert ENTERED(*given(whole=whole)) == ENTERED.entry(*given(whole=whole)) == 20.0 + 100.0 + 3000.0 + 0.5


@pytest.mark.parametrize(("changes", "words"), [
    ({"pair": (np.zeros((3, 2)), 1.0)}, "argument 1 of scaled"),
    ({"pair": Pair(np.zeros((3, 2), "f4"), 1.0)}, "argument 1 of scaled"),
    ({"pair": Pair(np.zeros((2, 3)).T, 1.0)}, "argument 1 of scaled"),
    ({"flags": np.zeros((1, 1), "?")}, r"argument 2 of scaled is an array of bool with shape \(1, 1\)"),
    ({"whole": 1.5}, r"argument 3 of scaled is 1.5 \(float\); it should be Scalar\('int64'\)"),
    ({"row": 1.0}, "argument 4 of scaled is 1.0"),
    ({"more": 1}, "scaled takes 4 arguments, not 5"),
])  # fmt: skip
def test_a_call_with_other_arguments_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        ENTERED(*given(**changes))


@pytest.mark.parametrize(("changes", "words"), [
    ({"pair": Pair(None, 1.0)}, "an argument should be an array"),  # type: ignore[arg-type]
    ({"flags": np.zeros((1, 1), "?")}, "an argument should be an array with 1 axes"),
    ({"row": 1.0}, "an argument should be a record"),
    ({"whole": "three"}, "invalid literal"),
    ({"more": 1}, "scaled takes 4 arguments"),
])  # fmt: skip
def test_an_entry_refuses_what_would_crash_it(changes: dict[str, object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        ENTERED.entry(*given(**changes))


def test_a_signature_of_numbas_types_is_refused() -> None:
    with pytest.raises(TypeError, match=r"the signature of scaled is of numba\S*; it should be made of servegym\."):
        Compiled(scaled, numba.float64(numba.float64))


def test_types_are_those_of_numba() -> None:
    assert scheduler_signature.numba == numba.void(*[kind.numba for kind in scheduler_signature.args])
    assert types.UniTuple(types.int64, 3).numba == numba.types.UniTuple(numba.int64, 3)
    assert types.from_dtype(ROW).numba == numba.from_dtype(ROW)
    assert types.from_dtype(np.dtype("?")) == types.boolean and types.from_dtype(np.dtype("f4")) == types.float32
    assert PAIR.numba == numba.types.NamedTuple((numba.float64[:, ::1], numba.float64), Pair)
    assert PAIR.numba is PAIR.numba and hash(PAIR) == hash(types.NamedTuple(PAIR.types, Pair))


def test_types_that_differ_have_other_texts() -> None:
    other = np.dtype([("n", "i4"), ("x", "f8")], align=True)
    kinds = [types.from_dtype(ROW), types.from_dtype(other), PAIR, types.Tuple(PAIR.types), SIMULATION_STATE]
    kinds += [types.Array(types.int8, axes, "C") for axes in (1, 2)]
    kinds += [gain_signature, types.FunctionType(gain_signature)]
    assert len({kind.text for kind in kinds}) == len({*kinds}) == len(kinds)
    assert gain(lambda *_: 0.0).declared == gain_signature


def test_settings_and_versions_are_those_of_numba() -> None:
    own = {name: getattr(numba.config, name) for name in SETTINGS if SETTINGS[name][0] not in os.environ}
    assert own == {name: SETTINGS[name][1] for name in own}
    assert versions().split()[:2] == [numba.__version__, llvmlite.__version__]
    code = "from servegym.simulator.compilation.settings import code_settings; print(code_settings())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == code_settings()

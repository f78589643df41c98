"""Templates with kernels of their own: compiled once for all processes, pickled, apart from each other."""

import os
import pickle
import subprocess
import sys

import pytest

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.digests import source_digest
from servegym.simulator.compilation.kernels import Compiled, compiled, specialised

signature = types.float64(types.float64)


@compiled(signature)
def inner(x):
    return x


FACTOR, UNUSED = 1.0, 1


@compiled(signature)
def template(x):
    return FACTOR * inner(x) + 1.0


@compiled(signature)
def twice(x):
    return 2.0 * x


@compiled(signature)
def square(x):
    return x * x


@pytest.mark.nojit
def test_each_does_what_it_was_given():
    assert template.py_func(5.0) == 6.0
    assert specialised(template, inner=twice)(5.0) == 11.0
    assert specialised(template, inner=square)(5.0) == 26.0
    assert specialised(template, inner=square, FACTOR=3.0)(5.0) == 76.0
    nested = specialised(template, inner=specialised(template, inner=square))
    assert nested(5.0) == 27.0 and isinstance(nested, Compiled)


def test_the_same_again_is_the_same_object():
    assert specialised(template, inner=twice, FACTOR=3.0) is specialised(template, FACTOR=3.0, inner=twice)
    assert specialised(template, inner=twice) is not specialised(template, inner=square)
    assert specialised(template, FACTOR=2.0) is not specialised(template, FACTOR=2)


def test_what_differs_has_another_digest_and_another_name():
    made = [specialised(template, inner=twice), specialised(template, inner=square), specialised(template, FACTOR=7.0)]
    assert len({source_digest(one) for one in [template, *made]}) == 4
    assert len({one.py_func.__qualname__ for one in made}) == 3


def test_pickling():
    for one in (
        specialised(template, inner=square, FACTOR=3.0),
        specialised(template, inner=specialised(template, inner=twice)),
    ):
        assert pickle.loads(pickle.dumps(one)) is one


def test_names_that_it_does_not_use():
    for name in ("outer", "UNUSED", "x"):
        with pytest.raises(ValueError, match=f"template uses no global {name}"):
            specialised(template, **{name: 1.0})


CODE = """
import time
from numba.core import event
from tests.simulator.test_specialised import specialised, square, template, twice

compiled = 0
class Count(event.Listener):
    def on_start(self, event):
        global compiled
        compiled += 1
    def on_end(self, event):
        pass
with event.install_listener("numba:compile", Count()):
    values = [specialised(template, inner=one)(5.0) for one in (ORDER)]
print(values, compiled > 0)
"""


@pytest.mark.slow
def test_another_process_does_not_compile_it_again(tmp_path):
    """Nor does it mix up two of them, in whichever order they were compiled and are asked."""

    def run(order: str) -> str:
        env = os.environ | {"SERVEGYM_CACHE": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
        code = CODE.replace("ORDER", order)
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True,
            cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        ).stdout.strip()  # fmt: skip

    # Each in a process of its own, so that both are the first function that their process compiles.
    assert run("twice,") == "[11.0] True"
    assert run("square,") == "[26.0] True"
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert run("twice, square") == "[11.0, 26.0] False"
    assert run("square, twice") == "[26.0, 11.0] False"
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

"""What is said while kernels are compiled."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation import progress as compile_progress
from servegym.simulator.compilation.kernels import compiled, kernel, uncompiled_kernels
from servegym.simulator.compilation.progress import CompileProgress


@kernel
def innermost(x):
    return x + 1.0


@kernel
def inner(x):
    return innermost(x) * 2.0


@compiled(types.float64(types.float64))
def outer(x):
    return inner(x) + innermost(x)


def event(function: Any) -> Any:
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(compile_progress, "time", clock)
    monkeypatch.setattr(CompileProgress, "announced", False)
    return clock


def compile_slowly(clock: Clock, each_s: float) -> None:
    """A kernel that calls three others."""
    progress = CompileProgress(outer.py_func, lambda: 3)
    progress.on_start(event(outer.py_func))
    for _ in range(3):
        progress.on_start(event(inner))
        clock.now_s += each_s
        progress.on_end(event(inner))
    progress.on_end(event(outer.py_func))


def test_the_kernels_that_are_left_are_counted(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    compile_slowly(clock, 11.0)
    assert capsys.readouterr().err.splitlines() == [
        "servegym: compiling kernels of outer: 0 of 3 done; once for this version",
        "servegym: compiling kernels of outer: 1 of 3 done, 11 s",
        "servegym: compiling kernels of outer: 2 of 3 done, 22 s",
        "servegym: compiling kernels of outer: 3 of 3 done, 33 s; they are optimised as a whole",
        "servegym: compiled outer in 33 s",
    ]


def test_of_what_is_quick_nothing_is_said_the_second_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    compile_slowly(clock, 0.1)
    assert capsys.readouterr().err.count("\n") == 2
    compile_slowly(clock, 0.1)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_one_line(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    compile_slowly(clock, 2.0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.endswith("\r\033[Kservegym: compiled outer in 6 s\n")


def test_what_has_been_compiled_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVEGYM_CACHE", str(tmp_path))
    assert uncompiled_kernels(outer) == 2
    assert outer(1.0) == 6.0
    assert uncompiled_kernels(outer) == 0

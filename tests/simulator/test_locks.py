"""A process that comes to a locked folder waits, and finds what the other has left."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from servegym.simulator.compilation import locks
from servegym.simulator.compilation.locks import alone_in, no_garbage_collection
from servegym.simulator.compilation.settings import JIT_DISABLED


def test_one_at_a_time(tmp_path: Path) -> None:
    folder, entered = tmp_path / "a" / "b", threading.Event()

    def enter() -> None:
        with alone_in(folder):
            entered.set()

    other = threading.Thread(target=enter)
    with alone_in(folder):
        other.start()
        assert not entered.wait(0.2)
    assert entered.wait(20)
    other.join()


def test_a_long_wait_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "QUIET_S", 0.05)
    started = threading.Event()

    def enter() -> None:
        started.set()
        with alone_in(tmp_path, "waiting for another"):
            pass

    other = threading.Thread(target=enter)
    with alone_in(tmp_path, "not said, as it does not wait"):
        other.start()
        started.wait(20)
        time.sleep(0.5)
    other.join()
    assert capfd.readouterr().err == "waiting for another\n"


def test_another_folder_is_another_matter(tmp_path: Path) -> None:
    with alone_in(tmp_path / "a"), alone_in(tmp_path / "b"):
        pass


def test_where_no_folder_can_be_made_nothing_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a folder cannot be made below a file")
    with alone_in(tmp_path / "file" / "a"), alone_in(tmp_path / "file" / "a"):
        pass


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.slow
def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text(
        "from servegym.simulator.compilation import numba_types as types\n"
        "from servegym.simulator.compilation.kernels import compiled\n"
        "@compiled(types.float64(types.float64))\ndef score(x):\n    return 2.0 * x\n"
    )
    code = (
        "from servegym.simulator.compilation import compiling\n"
        "made, own = [], compiling.compile_kernel\n"
        "compiling.compile_kernel = lambda *given: made.append(given) or own(*given)\n"
        "from policy import score; score(1.0); print(len(made))"
    )
    command, env = [sys.executable, "-c", code], os.environ | {"SERVEGYM_CACHE": str(tmp_path / "cache")}
    started = [subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    compiled = [int(process.communicate(timeout=300)[0]) for process in started]
    assert sorted(compiled) == [0, 0, 1]


def test_garbage_is_not_collected_meanwhile_and_is_again_afterwards() -> None:
    with pytest.raises(ValueError), no_garbage_collection():
        with no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_what_is_made_meanwhile_counts_as_old_and_is_collected_with_the_old() -> None:
    class Made:
        pass

    with no_garbage_collection():
        assert not gc.isenabled()
        one = Made()
        one.itself = one
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert any(other is one for other in gc.get_objects(generation=2))
    made = weakref.ref(one)
    del one
    gc.collect()
    assert made() is None

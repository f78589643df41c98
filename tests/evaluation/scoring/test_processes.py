"""A process that may crash, hang or lie; and what it cannot do in a sandbox."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servegym.errors import PolicyError
from servegym.evaluation.scoring import sandbox
from servegym.evaluation.scoring.processes import Process, Send

pytestmark = pytest.mark.slow


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    while True:
        time.sleep(0.01)


def refuse() -> None:
    raise PolicyError("it is late")


@pytest.mark.parametrize(
    ("work", "status", "output"),
    [(crash, -signal.SIGSEGV, []), (hang, -signal.SIGALRM, []), (refuse, 0, [{"refused": "it is late"}]),
     (lambda: 1 / 0, 1, []), (lambda: os._exit(3), 3, [])],
)  # fmt: skip
@pytest.mark.parametrize("boxed", [False, True])
def test_its_end_is_known(work: Callable[[], None], status: int, output: list, boxed: bool, tmp_path: Path) -> None:
    if boxed and not sandbox.is_there():
        pytest.skip("this system lets its user have no namespaces")
    process = Process(lambda send, lines_in: work(), 1.0, tmp_path / "errors", tmp_path if boxed else None)
    assert list(process.lines()) == output
    ended = process.end()
    assert ended.status == status and ended.cpu_s >= 0
    assert ("ZeroDivisionError" in (tmp_path / "errors").read_text("utf-8")) == (status == 1)


def test_it_is_asked_and_answers(tmp_path: Path) -> None:
    def work(send: Send, lines_in: Iterator[str]) -> None:
        for line in lines_in:
            os.write(1, b"not sent\n")
            send(twice=2 * int(line))

    process = Process(work, 10.0, tmp_path / "errors")
    lines = process.lines()
    for number in (3, 4):
        process.send(str(number))
        assert next(lines) == {"twice": 2 * number}
    assert process.end().status == 0


def test_the_asker_is_gone(tmp_path: Path) -> None:
    mine, theirs = os.pipe()
    process = Process(lambda send, lines_in: hang(), 10.0, tmp_path / "errors")
    os.close(theirs)
    with pytest.raises(EOFError):
        list(process.lines(mine))
    assert process.end().status == -signal.SIGKILL
    os.close(mine)


@pytest.mark.skipif(not sandbox.is_there(), reason="this system lets its user have no namespaces")
def test_what_cannot_be_done_in_a_sandbox(tmp_path: Path) -> None:
    own, parent, late = tmp_path / "own", os.getpid(), tmp_path / "own" / "late"
    own.mkdir()

    def linger() -> None:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1.0)
            late.write_text("still here", "utf-8")
            os._exit(0)

    ways: dict[str, Callable[[], object]] = {
        "writes to its own folder": lambda: (own / "x").write_text("1", "utf-8"),
        "leaves a process behind": linger,
        "writes elsewhere": lambda: (tmp_path / "x").write_text("1", "utf-8"),
        "reads the memory of the process that started it": lambda: os.open(f"/proc/{parent}/mem", os.O_RDONLY),
        "ends the process that started it": lambda: os.kill(parent, 0),
        "makes the rest writable again": lambda: sandbox._set_read_only(b"/", False, 0),
        "connects": lambda: socket.create_connection(("192.0.2.1", 9), 1.0),
    }

    def work(send: Send, lines_in: Iterator[str]) -> None:
        for name, way in ways.items():
            try:
                way()
                send(done=name)
            except OSError:
                pass

    process = Process(work, 20.0, tmp_path / "errors", own)
    done = [line["done"] for line in process.lines()]
    assert process.end().status == 0
    assert done == ["writes to its own folder", "leaves a process behind"]
    time.sleep(1.5)
    assert not late.exists()

"""Run work that may crash, hang, or be untrusted in a process of its own.

There are two processes: a supervisor, which runs none of the work, ends it when its time is up and cannot be reached
from the sandbox; and its child, which works.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from servegym.errors import ServegymError
from servegym.evaluation.scoring import sandbox

Line = dict[str, Any]
Send = Callable[..., None]
Work = Callable[[Send, Iterator[str]], None]
LONGEST_LINE = 2**16  # bytes
DESCRIPTORS = 4096  # most that may be open
GRACE_S = 1.0  # time to end once the input is closed


class Ended(NamedTuple):
    """status: as of `os.waitstatus_to_exitcode`; -SIGALRM: its time was up. cpu_s: processor seconds."""

    status: int
    cpu_s: float


class Process:
    """work(send, lines) in a process of its own: it gets lines of text (`send`), and sends mappings (`lines`).

    limit_s: time after which it is ended. errors: the file for what it prints. writable: the only folder that it can
    write to, in a sandbox; None: no sandbox. Its output is untrusted.
    """

    def __init__(self, work: Work, limit_s: float, errors: Path, writable: Path | None = None):
        output, writes = os.pipe()
        reads, input_ = os.pipe()
        ended, ends = os.pipe()  # only the supervisor has `ends`, which closes when it ends
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _close_all_but(writes, reads, ends)
                _supervise(work, limit_s, errors, writable, writes, reads, ends)
            finally:
                os._exit(1)
        for end in (writes, reads, ends):
            os.close(end)
        self._output, self._input, self._closes = output, input_, ended
        self._text, self._ended = b"", False

    def send(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(self._input, f"{text}\n".encode())

    def lines(self, asker: int | None = None) -> Iterator[Line]:
        """Yield the mappings that it sends from now on, until it ends.

        asker: descriptor of a pipe; raises EOFError once its other end is closed, as nobody reads the result then.
        """
        watched = [self._output, self._closes, *([] if asker is None else [asker])]
        while True:
            *whole, self._text = self._text.split(b"\n")
            for text in whole:
                line = parsed(text)
                if line:
                    yield line
            if self._ended or len(self._text) > LONGEST_LINE:
                return
            ready = select.select(watched, [], [])[0]
            if self._output in ready:
                more = os.read(self._output, LONGEST_LINE)
                self._text += more
                self._ended = not more
            elif self._closes in ready:
                self._ended = True
            else:
                raise EOFError

    def end(self) -> Ended:
        """Close its input, kill it if it does not end, and return how it ended."""
        os.close(self._input)
        if not select.select([self._closes], [], [], GRACE_S)[0]:
            self.kill()
        _, status, used = os.wait4(self.pid, 0)
        for end in (self._output, self._closes):
            os.close(end)
        return Ended(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)

    def kill(self) -> None:
        """Kill the supervisor, the work, and all processes that the work started in its sandbox or process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def parsed(text: bytes | str) -> Line:
    """Parse a line of JSON, and return it; {}: malformed, as of a process that was killed while writing."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _supervise(
    work: Work, limit_s: float, errors: Path, writable: Path | None, writes: int, reads: int, ends: int
) -> None:
    """Run in a fork: do the work in another fork, and exit with its status."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (file, 1), (file, 2)):
        os.dup2(old, new)
    init = None
    if writable is not None:
        sandbox.enter(writable)
        init = sandbox.fork_init()
    worker = os.fork()
    if worker == 0:
        os.close(ends)
        _work(work, writes, reads, writable is not None)
    for end in (writes, reads):
        os.close(end)
    late = []

    def end_it(*_: Any) -> None:
        late.append(True)
        os.kill(worker, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end_it)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    _, status = os.waitpid(worker, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if init is not None:
        os.kill(init, signal.SIGKILL)  # which ends all processes of the sandbox
        os.waitpid(init, 0)
    code = -signal.SIGALRM if late else os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _work(work: Work, writes: int, reads: int, in_sandbox: bool) -> None:
    """Do the work, and exit. writes, reads: descriptors of its output and input."""
    status = 1

    def send(**line: Any) -> None:
        os.write(writes, (json.dumps(line) + "\n").encode())

    try:
        if in_sandbox:
            sandbox.give_up_rights()
        with os.fdopen(reads, encoding="utf-8") as lines:
            work(send, lines)
        status = 0
    except ServegymError as error:
        send(refused=str(error))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)


def _close_all_but(*kept: int) -> None:
    """Close all descriptors but these and those of standard input, output and error."""
    first = 3
    for one in (*sorted(kept), DESCRIPTORS):
        os.closerange(first, one)
        first = one + 1

"""Run work that may crash, hang, or be untrusted in a process of its own: its output, exit status and termination.

There are two: a supervisor, which runs nothing of the work, ends it when its time is up and cannot be reached from the
sandbox, and under it the one that works.
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
Say = Callable[..., None]
Work = Callable[[Say, Iterator[str]], None]
LONGEST_LINE = 2**16  # bytes
DESCRIPTORS = 4096  # that may be open
GRACE_S = 1.0  # to end once nothing more is asked


class Ended(NamedTuple):
    """status: as `os.waitstatus_to_exitcode` has it, -SIGALRM where its time was up. cpu_s: processor seconds."""

    status: int
    cpu_s: float


class Process:
    """work(say, asked) in a process of its own.

    limit_s: after which it is ended. errors: the file that what it prints goes to. writable: it works in a sandbox in
    which it writes to that folder alone; None: in none. It is told lines (`tell`), which are its `asked`, and what it
    says is to be taken for what any stranger may have written.
    """

    def __init__(self, work: Work, limit_s: float, errors: Path, writable: Path | None = None):
        said, saying = os.pipe()
        asked, asking = os.pipe()
        gone, going = os.pipe()  # the supervisor alone has `going`: it closes when that ends
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _close_all_but(saying, asked, going)
                _supervise(work, limit_s, errors, writable, saying, asked, going)
            finally:
                os._exit(1)
        for end in (saying, asked, going):
            os.close(end)
        self._said, self._asking, self._gone = said, asking, gone
        self._text, self._ended = b"", False

    def tell(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended and will write nothing more
            os.write(self._asking, f"{text}\n".encode())

    def lines(self, asker: int | None = None) -> Iterator[Line]:
        """What it says from now on, each a mapping, until it ends.

        asker: the descriptor of a pipe whose other end whoever wants to know has open; once that is closed, EOFError.
        """
        watched = [self._said, self._gone, *([] if asker is None else [asker])]
        while True:
            *whole, self._text = self._text.split(b"\n")
            for text in whole:
                line = parsed(text)
                if line:
                    yield line
            if self._ended or len(self._text) > LONGEST_LINE:
                return
            ready = select.select(watched, [], [])[0]
            if self._said in ready:
                more = os.read(self._said, LONGEST_LINE)
                self._text += more
                self._ended = not more
            elif self._gone in ready:
                self._ended = True
            else:
                raise EOFError

    def end(self) -> Ended:
        """Close its input, and kill it if it does not end."""
        os.close(self._asking)
        if not select.select([self._gone], [], [], GRACE_S)[0]:
            self.kill()
        _, status, used = os.wait4(self.pid, 0)
        for end in (self._said, self._gone):
            os.close(end)
        return Ended(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)

    def kill(self) -> None:
        """Kill the supervisor, the work, and all processes it has started that are in its sandbox or process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def parsed(text: bytes | str) -> Line:
    """Parse a line of JSON; {} if it is malformed, as from a process killed while writing."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _supervise(
    work: Work, limit_s: float, errors: Path, writable: Path | None, saying: int, asked: int, going: int
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
        os.close(going)
        _work(work, saying, asked, writable is not None)
    for end in (saying, asked):
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
        os.kill(init, signal.SIGKILL)  # and with it all that the work has started
        os.waitpid(init, 0)
    code = -signal.SIGALRM if late else os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _work(work: Work, saying: int, asked: int, in_sandbox: bool) -> None:
    status = 1

    def say(**line: Any) -> None:
        os.write(saying, (json.dumps(line) + "\n").encode())

    try:
        if in_sandbox:
            sandbox.give_up_rights()
        with os.fdopen(asked, encoding="utf-8") as lines:
            work(say, lines)
        status = 0
    except ServegymError as error:
        say(refused=str(error))
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

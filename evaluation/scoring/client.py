"""A scoring server (`server.py`) of this process, started for the first job; it does one job at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from servegym.errors import ServegymError
from servegym.evaluation.scoring.processes import Line, parsed


class JobOutput(NamedTuple):
    """The output of a job, its exit status (below 0: the signal that ended it), and its processor seconds.

    killed: it took too long.
    """

    lines: list[Line]
    status: int
    cpu_s: float = 0.0
    killed: bool = False


class Server:
    """A server process for all threads of this process; a fork starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, job: dict[str, Any], limit_s: float) -> JobOutput:
        """Return the output of a job. limit_s: time after which the server is killed, with its job."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            late = threading.Event()

            def give_up() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(limit_s, give_up)
            timer.daemon = True
            lines: list[Line] = []
            try:
                timer.start()
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
                for text in process.stdout:
                    line = parsed(text)
                    if "end" in line:
                        return JobOutput(lines, int(line["end"]), float(line["cpu_s"]))
                    if line:
                        lines.append(line)
            except BrokenPipeError:
                pass
            except BaseException:  # Ctrl-C: nothing reads the output from now on
                self._stop()
                raise
            finally:
                timer.cancel()
            status = process.wait()
            self._process = None
            if late.is_set():
                return JobOutput(lines, status, killed=True)
            raise ServegymError(f"the scoring process ended by itself (status {status}); its error is printed above")

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            # -P: modules in the current folder are not imported by their bare names.
            command = [sys.executable, "-P", "-m", "servegym.evaluation.scoring.server"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            self._owner = os.getpid()
        return self._process

    def _stop(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.terminate()  # it then ends the processes that it started
            try:
                self._process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


server = Server()
ask: Callable[[dict[str, Any], float], JobOutput] = server.ask

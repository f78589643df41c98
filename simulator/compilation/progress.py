"""Progress of compilation on standard error, as compiling may take minutes on a busy machine."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

QUIET_S = 1.0  # shorter compilations are not reported, except the first of a process
EVERY_S = {True: 0.2, False: 10.0}  # between two reports, on a terminal (True) and elsewhere
MADE = re.compile(r"_[0-9a-f]{8}$")  # suffix of the name of a specialised kernel


class CompileProgress:
    """Listens to Numba's events while an outer kernel is compiled with those that it calls, and reports progress.

    function: the kernel's. left: returns how many of its kernels are not compiled yet.
    """

    announced = False  # whether this process has reported a compilation

    def __init__(self, function: Callable, left: Callable[[], int]):
        self.function, self.left = function, left
        self.name = MADE.sub("", function.__name__)
        self.begin_s: float | None = None  # None: not compiling
        self.last_s = 0.0
        self.done = self.total = 0
        self.has_said = False

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func is self.function:
            self.begin_s = self.last_s = time.monotonic()
            self.total = self.left()
            if not CompileProgress.announced:
                CompileProgress.announced = True
                self._count("; once for this version")

    def on_end(self, event: Any) -> None:
        if self.begin_s is None:
            return
        seconds, since_s = time.monotonic() - self.begin_s, time.monotonic() - self.last_s
        if event.data["dispatcher"].py_func is self.function:
            if self.has_said:
                self._say(f"compiled {self.name} in {seconds:.0f} s", "\n")
            self.begin_s = None
            return
        before, self.done = self.done, min(self.done + 1, self.total)
        if before < self.done == self.total and seconds > QUIET_S:
            self._count(f", {seconds:.0f} s; they are optimised as a whole")
        elif seconds > QUIET_S and (not self.has_said or since_s > EVERY_S[sys.stderr.isatty()]):
            self._count(f", {seconds:.0f} s")

    def _count(self, more: str) -> None:
        self.last_s, self.has_said = time.monotonic(), True
        counts = f": {self.done} of {self.total} done" if self.total else ""
        self._say(f"compiling kernels of {self.name}{counts}{more}", "" if sys.stderr.isatty() else "\n")

    def _say(self, text: str, end: str) -> None:
        line = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{line}servegym: {text}", end=end, file=sys.stderr, flush=True)

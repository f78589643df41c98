"""What a process that runs a policy may touch once the fence is up: what Python imports, and the kernels' cache.

Python tells an audit hook of each file that is opened and each process or connection that is started (PEP 578). What is
outside ends the process, so that nothing in the policy can catch it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from servegym.simulator.compilation import cache_root

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = frozenset(
    {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"}
)
STARTS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "socket.", "pty.")
DEVICES = "/dev/"


def put_up(policy: Path, refuse: Callable[[str], Any]) -> None:
    """From now on `refuse` is told, in words, of what is outside; then the process ends. policy: may be read."""
    cache = _inside(cache_root())
    # What can be imported may be read: libraries, and the folders that servegym's modules lie in.
    homes = {Path(sys.prefix), Path(sys.base_prefix), *(Path(entry) for entry in sys.path if entry)}
    homes |= {Path(file).resolve().parent for name, module in list(sys.modules.items()) if name.startswith("servegym")
              if (file := getattr(module, "__file__", None))}  # fmt: skip
    readable = (*map(_inside, homes), cache, DEVICES)
    own = os.path.realpath(policy)
    files = (own, cache_from_source(own))
    sys.dont_write_bytecode = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            name, _, flags = arguments
            if isinstance(name, int) or name is None:
                return
            there = os.path.realpath(os.fsdecode(name))
            if flags & WRITES:
                if not f"{there}/".startswith((cache, DEVICES)):
                    end(f"writes to {there}")
            elif there not in files and not f"{there}/".startswith(readable):
                end(f"reads {there}")
        elif event in CHANGES:
            there = os.path.realpath(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else "a file"
            if not f"{there}/".startswith(cache):
                end(f"changes {there} ({event})")
        elif event.startswith(STARTS):
            end(f"starts a process or a connection ({event})")

    def end(what: str) -> None:
        line = _line_in(own)
        refuse(f"{policy.name}{f', line {line},' if line else ''} {what}; a policy reads and writes what it is given")
        os._exit(0)

    sys.addaudithook(hook)


def _inside(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder), "")


def _line_in(file: str) -> int | None:
    """The line of a file that is running, innermost."""
    frame: Any = sys._getframe()
    while frame is not None:
        if os.path.abspath(frame.f_code.co_filename) == file:
            return int(frame.f_lineno)
        frame = frame.f_back
    return None

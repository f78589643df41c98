"""A sandbox of Linux namespaces for a process that runs untrusted code; the kernel enforces its limits.

It has no network and sees no other processes, all file systems but one folder are read-only, and all of its processes
end together. It can read what its user can read. Not every system lets a user make one.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import tempfile
from pathlib import Path

# linux/sched.h, sys/mount.h, linux/mount.h, sys/prctl.h, linux/capability.h
NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, HERE, WITH_ALL_BELOW, READ_ONLY = 442, -100, 0x8000, 1
NO_NEW_PRIVILEGES, CAPABILITIES_3 = 38, 0x20080522


def enter(writable: Path) -> None:
    """Put this process, which should have one thread, into a sandbox in which only one folder is writable.

    Processes that it forks from now on are in the sandbox; the first of them is their init, and when that ends, all are
    killed. Raises OSError if the system allows no sandbox.
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", NEW_USER | NEW_MOUNTS | NEW_IPC | NEW_PIDS | NEW_NET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    _call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    _set_read_only(b"/", True, WITH_ALL_BELOW)
    folder = os.fsencode(writable.resolve())
    _call("mount", folder, folder, None, BIND, None)
    _set_read_only(folder, False, 0)


def give_up_rights() -> None:
    """Drop the rights that a sandbox gives, such as mounting."""
    _call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("capset", (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)())


@functools.cache
def is_there() -> bool:
    """Return whether this system lets its user make a sandbox."""
    if sys.platform != "linux":
        return False
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                enter(Path(folder))
                give_up_rights()
                status = 0
            finally:
                os._exit(status)
        return os.waitpid(child, 0)[1] == 0


def fork_init() -> int:
    """Fork the init of the entered sandbox, which does nothing until it is killed."""
    child = os.fork()
    if child == 0:
        os.closerange(0, 4096)
        while True:
            signal.pause()
    return child


def _set_read_only(path: bytes, so: bool, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY * so, READ_ONLY * (not so), 0, 0)
    _call("syscall", ctypes.c_long(MOUNT_SETATTR), HERE, path, flags, attributes, ctypes.c_size_t(32))


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")

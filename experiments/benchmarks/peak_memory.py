"""The peak memory of a process."""

import re
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
KIBIBYTE = 1024


def peak_bytes() -> int:
    """The most resident memory that this process has had since it began to run its program.

    ru_maxrss is not that on Linux: a process that is started by vfork, as subprocess does, begins with the peak of the
    one that started it. So VmHWM is read, and ru_maxrss only where there is no /proc.
    """
    try:
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:
        peak = None
    if peak is not None:
        return int(peak[1]) * KIBIBYTE
    unit = 1 if sys.platform == "darwin" else KIBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

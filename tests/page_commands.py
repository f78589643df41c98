"""Run every `servegym` command of the guides as it is written: `python -m tests.page_commands [PAGE...]`.

The commands of a page run in order, in an empty folder of the page's own, so that one finds what those before it
wrote. Those that name another machine are not run, and those that take longer than a limit are ended. Those that take a
file, a policy or a server which only the reader has are told apart from those that fail. Exit status 1 where one fails.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.pages import PAGES, ROOT, commands_of

LIMIT_S = 60.0
GUIDES = [page for page in PAGES if "results" not in page.parts]  # pages of results say how they were made: hours
READERS_OWN = re.compile(  # files, policies, engines and servers
    "[Nn]o such (?:folder or )?file|there is no file|is not a file|is no program|cannot be read|cannot be reached|"
    "unknown learned policy|unknown claim|unknown latency form|no trace '|has vLLM|no address|_KEY is not set"
)
# Of another machine: nothing here sends it anything.
ELSEWHERE = re.compile(
    r"(?<![\d.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\d.])|://(?!127\.|localhost|0\.0\.0\.0)"
)
RAN, LONG, OWN, FAILED = "ran", "longer than the limit", "takes something that only the reader has", "failed"


class Outcome(NamedTuple):
    page: str
    command: str
    what: str
    seconds: float
    said: str


def run_page(page: Path, limit_s: float) -> Iterator[Outcome]:
    """The commands of a page, one after the other."""
    name = str(page.relative_to(ROOT))
    with tempfile.TemporaryDirectory(prefix="servegym-page-") as folder:
        for command in commands_of(page):
            yield run(name, command, folder, limit_s)


def run(page: str, command: str, folder: str, limit_s: float) -> Outcome:
    if elsewhere := ELSEWHERE.search(command):
        return Outcome(page, command, OWN, 0.0, f"not run: {elsewhere.group()} is another machine's")
    words = [sys.executable, "-P", "-m", "servegym", *shlex.split(command, comments=True)]
    begun_s = time.monotonic()
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
        last = (said.strip().splitlines() or [""])[-1]
        what = RAN if process.returncode == 0 else OWN if READERS_OWN.search(last) else FAILED
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        what, last = LONG, ""
    return Outcome(page, command, what, time.monotonic() - begun_s, last)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.page_commands", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="all guides, if none is named")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    asked = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for page in [path.resolve() for path in asked.pages] or GUIDES:
        for outcome in run_page(page, asked.limit_s):
            counts[outcome.what] += 1
            line = f"{outcome.seconds:5.0f} s  {outcome.what}: {outcome.page}: servegym {outcome.command}"
            print(f"{line}\n         {outcome.said}" if outcome.what in (OWN, FAILED) else line, flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return int(counts[FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The process behind a score: it has all that is slow to make ready, and forks itself for each policy.

    python -m servegym.evaluation.scoring.server

A line of JSON in is a job, {"do": "check" | "load" | "score", ...}; lines out are what it says (`worker.py`), and last
{"end": status, "cpu_s": seconds}: below 0, the signal that ended it. A job's errors go to the file that it names.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servegym.errors import ServegymError
from servegym.evaluation.scoring.cases import Cases
from servegym.evaluation.scoring.worker import Say, check, run

Job = dict[str, Any]


def main() -> None:
    from servegym.baselines import registry
    from servegym.evaluation.policy_checks import guards, scenes  # noqa: F401  to have them before a fork
    from servegym.simulator.loops import WHOLE

    WHOLE.entry  # noqa: B018
    registry.load()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed here is not said

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    known: dict[str, Cases] = {}
    for text in sys.stdin:
        job = json.loads(text)
        status, cpu_s = 0, 0.0
        try:
            if job["do"] in ("check", "load"):
                status, cpu_s = forked(job, functools.partial(check, job), say)
            elif job["do"] == "score":
                status, cpu_s = forked(job, functools.partial(run, job, cases_of(job, known)), say)
        except ServegymError as error:
            say(refused=str(error))
        out.write("\n")  # of a job that was ended in the middle of a line
        say(end=status, cpu_s=cpu_s)


def cases_of(job: Job, known: dict[str, Cases]) -> Cases:
    """Those of a panel and its baselines; a panel's file is read anew when its text has changed."""
    panel = job["panel"]
    text = Path(panel).read_text(encoding="utf-8") if panel and Path(panel).is_file() else None
    key = json.dumps([panel, text, job["kind"], job["baselines"]])
    if key not in known:
        known[key] = Cases(panel, job["kind"], tuple(job["baselines"]) if job["baselines"] else None)
    return known[key]


def forked(job: Job, work: Callable[[Say], None], say: Say) -> tuple[int, float]:
    """How a process of its own ended that did the work, and the processor seconds it took."""
    child = os.fork()
    if child:
        _, status, used = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    status = 1
    try:
        os.setsid()
        errors = os.open(job["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        work(say)
        status = 0
    except ServegymError as error:
        say(refused=str(error))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()

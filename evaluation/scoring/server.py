"""The process behind a score: it prepares once all that is slow, forks itself for each policy, and judges.

    python -m servegym.evaluation.scoring.server

Each line of its input is a job in JSON, {"do": "check" | "load" | "score", ...}. Its output for a job is that of
`judging.judge` (of a check: of `policy_checks.worker`), and then {"end": status, "cpu_s": seconds}; a status below 0 is
the signal that ended the policy's process, whose errors go to the file that the job names. No code of a policy's file
runs here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

from servegym.errors import ServegymError
from servegym.evaluation.scoring import sandbox
from servegym.evaluation.scoring.cases import Cases
from servegym.evaluation.scoring.decisions import Log
from servegym.evaluation.scoring.judging import EndedEarly, file_judge, judge, named_judge
from servegym.evaluation.scoring.processes import Process, Send, Work
from servegym.evaluation.scoring.worker import check, play

Job = dict[str, Any]
JOBS = 0  # the descriptor that jobs come from
OWN_CACHES = "candidates"  # folder in the kernels' cache with a cache for each text
LOG_BYTES = 2**30  # virtual memory, of which pages are allocated when they are written
OF_A_CHECK = ("at", "refused", "kind")  # messages that the checking process may send


def main() -> None:
    make_ready()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # printed text should not reach the client

    def send(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    known: dict[str, Cases] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for text in sys.stdin:
            do(json.loads(text), known, send)
    except (EOFError, BrokenPipeError, SystemExit):  # the reader is gone
        os._exit(0)


def make_ready() -> None:
    """Compile, or read from the cache, what all runs and checks need, so that forked processes have it."""
    from servegym.baselines import registry
    from servegym.evaluation.policy_checks import guards  # noqa: F401
    from servegym.evaluation.policy_checks.scenes import scenes_for
    from servegym.simulator.runs.loops import WHOLE
    from servegym.simulator.runs.simulation import Simulation

    for policy in (registry.scheduler("vllm-v1"), registry.router("round-robin")):
        for _, scenario in scenes_for(policy):
            simulation = Simulation(scenario)
            simulation.loop = WHOLE
            simulation.run()


def do(job: Job, known: dict[str, Cases], send: Send) -> None:
    """Do a job, and send its output and its end."""
    status, cpu_s = 0, 0.0
    try:
        if job["do"] == "score":
            cases = cases_of(job, known)
            status, cpu_s = score_file(job, cases, send) if job["path"] else score_named(job, cases, send)
        else:
            status, cpu_s = check_file(job, send)
    except ServegymError as error:
        send(refused=str(error))
    send(end=status, cpu_s=cpu_s)


def cases_of(job: Job, known: dict[str, Cases]) -> Cases:
    """Return the cases of a job's panel and baselines; a panel's file is read again when it has changed."""
    panel, content = job["panel"], ""
    with contextlib.suppress(OSError):  # no file: a panel by name, or `Cases` says what is wrong
        content = hashlib.sha256(Path(panel or "").read_bytes()).hexdigest()
    key = json.dumps([panel, content, job["kind"], job["baselines"]])
    if key not in known:
        known[key] = Cases(panel, job["kind"], tuple(job["baselines"]) if job["baselines"] else None)
    return known[key]


def check_file(job: Job, send: Send) -> tuple[int, float]:
    """Check or load a file in a process of its own, and return the exit status and processor seconds of that."""
    process = policy_process(functools.partial(check, job, own_cache(job)), job)
    try:
        for line in process.lines(JOBS):
            if line.keys() <= set(OF_A_CHECK) and all(isinstance(value, str) for value in line.values()):
                send(**line)
    finally:
        ended = process.end()
    return ended


def score_file(job: Job, cases: Cases, send: Send) -> tuple[int, float]:
    """Score a file: its process decides, and the runs are repeated here. Returns as `check_file`."""
    memory = mmap.mmap(-1, LOG_BYTES)  # shared with the process that is forked now
    log = Log(memory)
    process = policy_process(functools.partial(play, job, own_cache(job), cases, log), job)
    judged_all = False
    try:
        judge(cases, *file_judge(cases, process, log, JOBS), job["least"], send)
        judged_all = True
    except EndedEarly:
        pass
    finally:
        ended = process.end()
    return (0 if judged_all else ended.status or 1), ended.cpu_s


def score_named(job: Job, cases: Cases, send: Send) -> tuple[int, float]:
    """Score a policy without a file, whose only risk is that it takes too long. Returns as `check_file`."""

    def work(send_on: Send, lines: Any) -> None:
        judge(cases, *named_judge(cases, job["name"]), job["least"], send_on)

    process = Process(work, job["limit_s"], Path(job["errors"]))
    try:
        for line in process.lines(JOBS):
            send(**line)
    finally:
        ended = process.end()
    return ended


def policy_process(work: Work, job: Job) -> Process:
    """Start the process in which a policy's file runs: in a sandbox, if the system has one."""
    return Process(work, job["limit_s"], Path(job["errors"]), own_cache(job) if sandbox.is_there() else None)


def own_cache(job: Job) -> Path:
    """Return the cache of kernels for a text alone, as loading a kernel may run code that is in it."""
    from servegym.simulator.compilation.cache import cache_root

    folder = cache_root() / OWN_CACHES / hashlib.sha256(Path(job["path"]).read_bytes()).hexdigest()[:20]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()

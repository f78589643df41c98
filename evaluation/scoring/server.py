"""The process behind a score: it prepares once all that is slow, forks itself for each policy, and judges.

    python -m servegym.evaluation.scoring.server

A line of JSON in is a job, {"do": "check" | "load" | "score", ...}; lines out are what there is to say of it
(`judging.judge`; of a check `policy_checks.worker`), and last {"end": status, "cpu_s": seconds}: below 0, the signal
that ended the policy's process. Its errors go to the file that the job names. No code of a policy's file runs here.
"""

from __future__ import annotations

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
from servegym.evaluation.scoring.judging import Silence, file_judge, judge, named_judge
from servegym.evaluation.scoring.processes import Process, Say, Work
from servegym.evaluation.scoring.worker import check, play

Job = dict[str, Any]
JOBS = 0  # the descriptor that jobs come from
OWN_CACHES = "candidates"  # in the kernels' cache, a folder for each text
LOG_BYTES = 2**30  # of memory, which is taken as it is used
OF_A_CHECK = ("at", "refused", "kind")  # messages that the checking process may send


def main() -> None:
    make_ready()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # printed text must not reach the client

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    known: dict[str, Cases] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for text in sys.stdin:
            do(json.loads(text), known, say)
    except (EOFError, BrokenPipeError, SystemExit):  # the reader is gone
        os._exit(0)


def make_ready() -> None:
    """Compile, or read from the cache, what runs and checks of any policy need: their processes do not share it."""
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


def do(job: Job, known: dict[str, Cases], say: Say) -> None:
    """A job, and its end."""
    status, cpu_s = 0, 0.0
    try:
        if job["do"] == "score":
            cases = cases_of(job, known)
            status, cpu_s = score_file(job, cases, say) if job["path"] else score_named(job, cases, say)
        else:
            status, cpu_s = check_file(job, say)
    except ServegymError as error:
        say(refused=str(error))
    say(end=status, cpu_s=cpu_s)


def cases_of(job: Job, known: dict[str, Cases]) -> Cases:
    """The cases of a panel and its baselines; a panel's file is read again when its text has changed."""
    panel = job["panel"]
    text = Path(panel).read_text(encoding="utf-8") if panel and Path(panel).is_file() else None
    key = json.dumps([panel, text, job["kind"], job["baselines"]])
    if key not in known:
        known[key] = Cases(panel, job["kind"], tuple(job["baselines"]) if job["baselines"] else None)
    return known[key]


def check_file(job: Job, say: Say) -> tuple[int, float]:
    process = policys_process(functools.partial(check, job, own_cache(job)), job)
    try:
        for line in process.lines(JOBS):
            if line.keys() <= set(OF_A_CHECK) and all(isinstance(value, str) for value in line.values()):
                say(**line)
    finally:
        ended = process.end()
    return ended


def score_file(job: Job, cases: Cases, say: Say) -> tuple[int, float]:
    """How the policy's process ended that had what it decides repeated here, and its processor seconds."""
    memory = mmap.mmap(-1, LOG_BYTES)  # shared with the process that is forked now
    log = Log(memory)
    process = policys_process(functools.partial(play, job, own_cache(job), cases, log), job)
    judged_all = False
    try:
        judge(cases, *file_judge(cases, process, log, JOBS), job["least"], say)
        judged_all = True
    except Silence:
        pass
    finally:
        ended = process.end()
    return (0 if judged_all else ended.status or 1), ended.cpu_s


def score_named(job: Job, cases: Cases, say: Say) -> tuple[int, float]:
    """As `score_file`, for a policy without a file: the only risk is that it takes too long."""

    def work(say_on: Say, asked: Any) -> None:
        judge(cases, *named_judge(cases, job["name"]), job["least"], say_on)

    process = Process(work, job["limit_s"], Path(job["errors"]))
    try:
        for line in process.lines(JOBS):
            say(**line)
    finally:
        ended = process.end()
    return ended


def policys_process(work: Work, job: Job) -> Process:
    """The process in which the code of a policy's file runs: in a sandbox, if the system has one."""
    return Process(work, job["limit_s"], Path(job["errors"]), own_cache(job) if sandbox.is_there() else None)


def own_cache(job: Job) -> Path:
    """The folder of kernels that are compiled for a text, and read for it alone: reading one may run what is in it."""
    from servegym.simulator.compilation.kernels import cache_root

    folder = cache_root() / OWN_CACHES / hashlib.sha256(Path(job["path"]).read_bytes()).hexdigest()[:20]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()

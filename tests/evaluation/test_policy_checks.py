"""Policies that write or read where they should not, crash or never end are refused before they are run.

One process checks all the harmful ones, since each new process costs seconds; what ends a process has one of its own.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from servegym.baselines import registry
from servegym.errors import PolicyError
from servegym.evaluation.policy_checks import checking
from servegym.evaluation.policy_checks.checking import check_policy
from servegym.evaluation.policy_checks.worker import check_no_dice
from servegym.policy import Policy, scheduler

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
BOUNDS = "in harmful: IndexError: index is out of bounds"
WORDS = {
    "none": "",
    "ranks-past-end": BOUNDS,
    "ranks-far-away": BOUNDS,
    "ranks-before-start": "wrote past the end of ranks or before its start",
    "ranks-by-request": BOUNDS,
    "requests-by-place": "sets key of position [0-9]+ by what is not in its queue",
    "last-not-ranked": "no tier; ranks.i. should be written for every i",
    "writes-requests": "wrote into requests, which it may only read",
    "state-past-width": BOUNDS,
    "queue-past-end": BOUNDS,
    "state-by-place": "writes into state.requests of requests that are not in its queue",
    "writes-queue": "wrote into the queue, which it may only read",
    "clients-by-request": BOUNDS,
    "victims-by-place": "sets victim_key of a request by what is not in its queue",
    "limit-by-place": "sets the limit max_num_batched_tokens by what is not in its queue",
    "raises-when-busy": "in harmful: AssertionError: so many requests",
    "route-right": "",
    "records-past-end": "sets held_queue by what it does not know",
    "scratch-past-end": "harmful_policies.py, line [0-9]+, in harmful_router: IndexError",
    "scratch-before-start": "harmful_policies.py, line [0-9]+, in harmful_router: IndexError",
    "writes-views": "wrote into known.snapshots, which it may only read",
    "unknown-requests": "sets held_queue by what it does not know",
    "scale-right": "",
    "moves-past-end": "harmful_policies.py, line [0-9]+, in harmful_scaler: IndexError",
}


@scheduler
def dice(context, ranks, limits):
    ranks[0].key = np.random.random()  # noqa: NPY002


FILE = """
from servegym.policy import Policy, register, scheduler


@scheduler
def mine(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        ranks[position].tier, ranks[position].key = 0, float(position)
    {statement}


register(Policy("mine", "scheduler", "First come, first served.", "a test", mine))
"""


def written(folder: Path, statement: str) -> Path:
    file = folder / "mine.py"
    file.write_text(FILE.format(statement=statement), "utf-8")
    return file


def test_each_way_to_write_or_read_elsewhere_is_refused_in_one_line() -> None:
    command = [sys.executable, str(HERE / "check_each.py"), str(HERE / "harmful_policies.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NUMBA_DISABLE_JIT": "0"})
    said = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert said.keys() == WORDS.keys(), done.stderr
    for way, words in WORDS.items():
        assert "\n" not in said[way] and bool(said[way]) == bool(words), (way, said[way])
        assert re.search(words, said[way]), (way, said[way])


def test_a_loop_without_end_takes_only_the_other_process(tmp_path: Path) -> None:
    file = written(tmp_path, "while limits.max_num_batched_tokens > 0:\n        ranks[0].tier += 1")
    with pytest.raises(PolicyError, match=r"mine.py did not pass .*\(scheduler mine: one engine\): no end in 3 s"):
        check_policy(file, limit_s=3)


def test_a_file_that_never_ends_at_its_top_level_takes_only_the_other_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("while True:\n    pass\n", "utf-8")
    with pytest.raises(PolicyError, match=r"mine.py did not pass .*\(mine.py itself, .*\): no end in 2 s"):
        check_policy(file, limit_s=2)


def test_what_draws_random_numbers_is_named() -> None:
    with pytest.raises(
        PolicyError, match=r"test_policy_checks.py, line [0-9]+: scheduler dice draws from np.random.ran"
    ):
        check_no_dice(Policy("dice", "scheduler", "", "", dice), dice)
    router = registry.router("gorouting")  # draws from one that is seeded
    check_no_dice(router, router.function)


def test_what_kills_the_process_takes_only_the_other_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "utf-8")
    with pytest.raises(PolicyError, match=r"mine.py did not pass .* the process was ended by SIGSEGV; it should"):
        check_policy(file)


def test_a_file_that_has_passed_is_not_checked_again_before_it_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SERVEGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checking, "advance_ready", lambda: None)
    runs = []

    def run(command, **_):
        runs.append(command)
        return subprocess.CompletedProcess(command, 0, '{"at": "x"}\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    file = written(tmp_path, "limits.max_num_batched_tokens = 64")
    check_policy(file)
    check_policy(file)
    assert len(runs) == 1
    check_policy(file, again=True)
    assert len(runs) == 2
    written(tmp_path, "limits.max_num_batched_tokens = 65")
    check_policy(file)
    assert len(runs) == 3


def test_a_failure_is_one_line_with_status_2_and_no_check_leaves_it_to_the_run(tmp_path: Path) -> None:
    written(tmp_path, "limits.chunk_tokens = 0")
    command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", "mine.py", "--scheduler", "mine",
               "--requests", "20"]  # fmt: skip
    for more, words in (((), "mine.py did not pass its check (scheduler mine: one engine)"), (("--no-check",), "at ")):
        done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2, done
        assert words in done.stderr and "set chunk_tokens to 0; it should be 1 or more" in done.stderr
        assert "Traceback" not in done.stderr and "ignored" not in done.stderr

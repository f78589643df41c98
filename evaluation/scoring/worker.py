"""The work of processes in which a policy's code runs: check its file, and run it on a panel's scenarios."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError
from servegym.evaluation.policy_checks import worker as checker
from servegym.evaluation.scoring.cases import Cases
from servegym.evaluation.scoring.decisions import Log, place_of_log, simulated, traits_of, written_down
from servegym.evaluation.scoring.processes import Say
from servegym.simulator.policies.policy import Policy

LARGEST_FILE = 2**26  # bytes: kernels in the cache have less


def check(job: dict[str, Any], own_cache: Path, say: Say, asked: Iterator[str]) -> None:
    """As `check_policy` does, unless it is only to be loaded; then {"kind": ...} of the policy that is to be scored."""
    path = Path(job["path"])
    begin(job, own_cache)
    look = checker.loaded if job["do"] == "load" else checker.check_file
    say(kind=chosen(look(path, job["check_s"], say), path, job["name"]).kind)


def play(job: dict[str, Any], own_cache: Path, cases: Cases, log: Log, say: Say, asked: Iterator[str]) -> None:
    """{"policy": its label, "traits": ...} when it is loaded; then, for each number of a scenario that is asked for,
    its decisions in the log, {"run": number, "used": bytes of the log, "wall_s": ...}."""
    path = Path(job["path"])
    begin(job, own_cache)
    policy = chosen(checker.loaded(path, job["limit_s"], say), path, job["name"])
    noted, place = written_down(policy), place_of_log(policy)
    say(policy=policy.label, traits=vars(traits_of(policy)))
    for line in asked:
        number = int(line)
        log.begin()
        simulation = simulated(cases.scenario(cases.places[number], noted), cases.kind, place, log)
        simulation._advance(stop_at=0)
        if log.was_full:
            raise PolicyError(f"its decisions in one run take more than {len(log.bytes) / 2**30:g} GiB")
        say(run=number, used=log.used, wall_s=simulation.wall_s)


def begin(job: dict[str, Any], own_cache: Path) -> None:
    """Limits of this process, and a cache that no other policy's process reads."""
    limit_resources(job["memory_gib"])
    os.environ["SERVEGYM_CACHE"] = str(own_cache)
    sys.dont_write_bytecode = True


def limit_resources(memory_gib: float) -> None:
    """Limit allocated memory, mappings included (but not libraries that are only mapped), and printed output."""
    limit = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def chosen(found: list[Policy], path: Path, name: str | None) -> Policy:
    """The policy to be scored. Raises PolicyError for none, or for several without a name."""
    if not found:
        raise PolicyError(f"{path.name} registers no policy; it should call register(Policy(...))")
    matching = [policy for policy in found if name in (None, policy.name)]
    if len(matching) != 1:
        said = f"has no policy {name!r}" if name else f"registers {len(found)} policies"
        raise PolicyError(f"{path.name} {said}; name one of them: {', '.join(policy.name for policy in found)}")
    return matching[0]

"""The work of the processes in which a policy's code runs: check its file, and run it on a panel's scenarios."""

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
from servegym.evaluation.scoring.decisions import Log, log_index, recorded, simulated, traits_of
from servegym.evaluation.scoring.processes import Send
from servegym.simulator.policies.policy import Policy

LARGEST_FILE = 2**26  # bytes; kernels in the cache are smaller


def check(job: dict[str, Any], own_cache: Path, send: Send, lines: Iterator[str]) -> None:
    """Check the policies of a file, or only load it, and send {"kind": ...} of the policy to score."""
    path = Path(job["path"])
    begin(job, own_cache)
    look = checker.loaded if job["do"] == "load" else checker.check_file
    send(kind=chosen(look(path, job["check_s"], send), path, job["name"]).kind)


def play(job: dict[str, Any], own_cache: Path, cases: Cases, log: Log, send: Send, lines: Iterator[str]) -> None:
    """Load the policy and send {"policy": its label, "traits": ...}; then run the scenario of each number in `lines`.

    Its decisions go into the log; for each run {"run": number, "used": bytes of the log, "wall_s": ...} is sent.
    """
    path = Path(job["path"])
    begin(job, own_cache)
    policy = chosen(checker.loaded(path, job["limit_s"], send), path, job["name"])
    recording, index = recorded(policy), log_index(policy)
    send(policy=policy.label, traits=vars(traits_of(policy)))
    for line in lines:
        number = int(line)
        log.begin()
        simulation = simulated(cases.scenario(cases.places[number], recording), cases.kind, index, log)
        simulation._advance(stop_at=0)
        if log.was_full:
            raise PolicyError(f"its decisions in one run take more than {len(log.bytes) / 2**30:g} GiB")
        send(run=number, used=log.used, wall_s=simulation.wall_s)


def begin(job: dict[str, Any], own_cache: Path) -> None:
    """Limit the resources of this process, and give it a cache that no other policy's process reads."""
    limit_resources(job["memory_gib"])
    os.environ["SERVEGYM_CACHE"] = str(own_cache)
    sys.dont_write_bytecode = True


def limit_resources(memory_gib: float) -> None:
    """Limit allocated memory, including mappings but not mapped libraries, and the size of written files."""
    limit = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def chosen(found: list[Policy], path: Path, name: str | None) -> Policy:
    """Return the policy to score. Raises PolicyError for none, or for several without a name."""
    if not found:
        raise PolicyError(f"{path.name} registers no policy; it should call register(Policy(...))")
    matching = [policy for policy in found if name in (None, policy.name)]
    if len(matching) != 1:
        problem = f"has no policy {name!r}" if name else f"registers {len(found)} policies"
        raise PolicyError(f"{path.name} {problem}; name one of them: {', '.join(policy.name for policy in found)}")
    return matching[0]
